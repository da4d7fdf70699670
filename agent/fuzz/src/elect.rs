//! Messages between voters, and the record of a leader in etcd.

use ragent_base::testing::assert_shown;
use ragent_election::election::message::{Replica, Request, VoterMessage};
use ragent_proto::convert::{
    claim,
    voter::{self, FromVoter},
};
use ragent_rendezvous::{
    limits::{NUMBER_MAX, SUCCESSORS_MAX, VOTERS_MAX},
    message::ENDED_SHOWN_MAX,
};

/// Decodes the record of a leader if the first byte is odd, else a message of a voter.
pub fn elect(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    if kind % 2 == 1 {
        record(bytes)
    } else {
        message(bytes)
    };
}

fn message(bytes: &[u8]) -> Option<()> {
    let (header, message) = voter::decode(bytes).ok()?;
    assert_shown(&(&header, &message));
    match &message {
        FromVoter::Request(request) => {
            check_common(request);
            match &request.body {
                Request::Vote { term, .. } | Request::Release { term } => number(term.0),
                Request::Renew { term, replica, .. } => {
                    number(term.0);
                    check_replica(replica);
                }
                Request::PreVote | Request::Leave | Request::Hello => {}
            }
        }
        FromVoter::Answer(answer) => {
            check_common(answer);
            if let Some((term, _)) = &answer.body.former {
                number(term.0);
            }
            if let Some(replica) = &answer.body.replica {
                check_replica(replica);
            }
        }
    }
    let encoded = voter::encode(&header, message.clone());
    assert_eq!(voter::decode(&encoded), Ok((header, message)));
    Some(())
}

fn check_common<Body>(message: &VoterMessage<Body>) {
    number(message.highest.0);
    number(message.knows.version.term.0);
    number(message.knows.version.number);
    assert!(!message.process.to_string().is_empty());
    if let Some(job) = &message.job {
        assert!(job.voters.len() <= 2 * VOTERS_MAX && !job.uid.to_string().is_empty());
        if let Some(leads) = &job.leads {
            number(leads.term.0);
        }
    }
    assert!(message.ended.len() <= ENDED_SHOWN_MAX);
    assert!(message.ended.iter().all(|uid| !uid.to_string().is_empty()));
}

fn check_replica(replica: &Replica) {
    number(replica.version.term.0);
    number(replica.version.number);
    let lists = &replica.lists;
    let before = lists.before.as_ref().map_or(0, Vec::len);
    assert!(lists.last.len() <= VOTERS_MAX && before <= VOTERS_MAX, "{lists:?}");
}

/// Checks a number to which others are added.
#[track_caller]
fn number(number: u64) {
    assert!(number <= NUMBER_MAX, "{number}");
}

fn record(bytes: &[u8]) -> Option<()> {
    let record = claim::decode(bytes).ok()?;
    assert_shown(&record);
    number(record.term.0);
    assert!(record.successors.len() <= SUCCESSORS_MAX);
    assert!(!record.endpoint.is_empty() && !record.process.to_string().is_empty());
    assert_eq!(claim::decode(&claim::encode(record.clone())), Ok(record));
    Some(())
}
