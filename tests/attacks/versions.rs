//! Checks that agents and coordinators with different versions of the protocol take no part in each other's job.

use nix::sys::signal::Signal;
use ragent_proto::v1::{
    coordinator_message::Message,
    refusal::{ProtocolVersion, Reason},
};
use ragent_rendezvous::message::PROTOCOL_VERSION;

use crate::{
    attacker::{registration, while_registered},
    coordinator::{refusal, serve},
    support::{Sandbox, free_port},
};

/// The versions before and after that of this program.
const OTHERS: [u32; 2] = [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1];

/// A coordinator refuses an older and a newer agent with its own version, and goes on with agents of that version.
#[test]
fn agents_of_other_versions() {
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = format!("--nnodes 2 --rdzv-id job --rdzv-endpoint {endpoint} --no-python");
    let host = sandbox.ragent(&format!("{words} stay.sh"));
    let mut host = host.start();
    host.logs("registered");
    for version in OTHERS {
        let mut other = registration("other", "127.0.0.1", 1);
        other.protocol_version = version;
        while_registered(&endpoint, other, |answer| {
            let Some(Message::Refusal(refusal)) = answer.message else { panic!("{answer:?}") };
            let expected = ProtocolVersion { ours: PROTOCOL_VERSION };
            assert_eq!(refusal.reason, Some(Reason::ProtocolVersion(expected)));
        });
        host.logs("reason=\"protocol_version\"");
    }
    let mut guest = sandbox.ragent(&format!("{words} stay.sh")).start();
    assert_eq!([&mut host, &mut guest].map(|agent| agent.worker().number("world_size")), [2, 2]);
    for agent in [host, guest] {
        agent.signal(Signal::SIGTERM);
        agent.end();
    }
}

/// An agent that an older or a newer coordinator refuses names both versions and what to do. It starts no worker.
#[test]
fn coordinators_of_other_versions() {
    for version in OTHERS {
        let address = serve(refusal(version));
        let sandbox = Sandbox::new();
        let words = format!(
            "--nnodes 2 --rdzv-id job --rdzv-endpoint {address} --rdzv-conf is_host=0 --no-python stay.sh"
        );
        let end = sandbox.ragent(&words).run();
        end.assert_code(9);
        let versions = format!(
            "it uses version {PROTOCOL_VERSION} of the protocol, the coordinator uses version {version}"
        );
        end.assert_stderr(&[&versions, "install the same version of ragent on all nodes"]);
        assert_eq!(end.stdout, "");
    }
}
