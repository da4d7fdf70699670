//! Reads the output of one node.

use std::time::Duration;

use ragent_base::{secret::Credentials, sys::clock};
use ragent_coordinator::{
    client::{StreamError, ask_logs},
    pages::logs::{LogsMessage, LogsRequest},
};
use ragent_rendezvous::{ids::NodeId, jitter::Pauses};
use tokio::sync::mpsc;

use super::nodes::ReadNode;

/// The first pause before a node is asked again, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(8)];

/// The time that a node has for each part of its answer, if it is read once.
const PATIENCE: Duration = Duration::from_secs(10);

/// An event of the reading of one node.
#[derive(Debug)]
pub(super) enum FromNode {
    /// The node has sent messages.
    Messages(NodeId, Vec<LogsMessage>),
    /// The connection broke, and is opened again.
    Broken(NodeId, String),
    /// The node is not read any more: its agent has ended, or there is a reason.
    Ended(NodeId, Option<String>),
}

/// Reads the output of a node until its agent ends. If the connection breaks and the request follows, goes on with what is new then. The
/// caller ends this task if the node is gone.
pub(super) async fn read_node(
    node: ReadNode,
    credentials: Credentials,
    mut request: LogsRequest,
    to: mpsc::Sender<FromNode>,
) {
    let mut pauses = Pauses::new(PAUSES[0], PAUSES[1], u64::from(node.address.port()));
    loop {
        let read = read_once(&node, &credentials, &mut request, &to, &mut pauses).await;
        let (text, is_refused) = match read {
            Ok(ReadEnd::Complete) => break,
            Ok(ReadEnd::Cut) => ("it has ended the connection".to_owned(), false),
            Ok(ReadEnd::Silent) => {
                (format!("it has sent nothing for {} s", PATIENCE.as_secs()), false)
            }
            Err(error) => {
                let is_refused = matches!(
                    error,
                    StreamError::Refused { .. }
                        | StreamError::Mismatch(_)
                        | StreamError::Unproven { .. }
                );
                (error_text(&error), is_refused)
            }
        };
        if is_refused || !request.follow {
            // The command may have ended.
            let _ = to.send(FromNode::Ended(node.id, Some(text))).await;
            return;
        }
        if to.send(FromNode::Broken(node.id.clone(), text)).await.is_err() {
            return;
        }
        clock::until(Some(clock::now() + pauses.after_failure())).await;
    }
    let _ = to.send(FromNode::Ended(node.id, None)).await;
}

/// The end of an answer.
enum ReadEnd {
    /// There is no more output.
    Complete,
    /// The node has ended the connection before that.
    Cut,
    /// The node has sent nothing in time.
    Silent,
}

async fn read_once(
    node: &ReadNode,
    credentials: &Credentials,
    request: &mut LogsRequest,
    to: &mpsc::Sender<FromNode>,
    pauses: &mut Pauses,
) -> Result<ReadEnd, StreamError> {
    let mut deadline = clock::now() + PATIENCE;
    let mut lines = ask_logs(node.address, credentials, request).await?;
    loop {
        let part = tokio::select! {
            part = lines.next() => part?,
            () = clock::until((!request.follow).then_some(deadline)) => return Ok(ReadEnd::Silent),
        };
        let Some(part) = part else { return Ok(ReadEnd::Cut) };
        pauses.reset();
        // A later version may have further messages.
        let messages: Vec<LogsMessage> =
            part.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if messages.is_empty() {
            continue;
        }
        let is_end = messages.contains(&LogsMessage::End);
        for message in &messages {
            if let LogsMessage::Output { round, .. } = message {
                request.seen = request.seen.max(Some(*round));
            }
        }
        if to.send(FromNode::Messages(node.id.clone(), messages)).await.is_err() || is_end {
            return Ok(ReadEnd::Complete);
        }
        deadline = clock::now() + PATIENCE;
    }
}

fn error_text(error: &StreamError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
