//! Attacks a job by messages in the name of a member.

use std::{
    io::Read,
    net::{TcpListener, TcpStream},
};

use ragent_proto::v1::{
    self, agent_message::Message as AgentMessage, coordinator_message::Message, refusal::Reason,
};
use ragent_rendezvous::message::PROTOCOL_VERSION;

use crate::{
    attacker::{here, http, registration, while_registered, while_registered_with},
    support::{LEASE, let_pass},
    victim::{ATTACKER, ENDPOINT, Victim},
};

/// Posts a death notice, and returns the status of the answer.
fn death_notice(text: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(ENDPOINT).unwrap();
    let request = format!(
        "POST /v1/death-notice HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: close\r\n{headers}\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    );
    http(&mut stream, &request);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// 3: a forged death notice, also as a form in a browser, has no effect.
#[test]
fn forged_death_notice() {
    let Some(mut victim) = Victim::new("obit") else { return };
    let guest = victim.guest_id();
    here(&victim.network, ATTACKER, || {
        for proof in ["", " 00000000000000000000000000000000", " 0", " x"] {
            death_notice(&format!("{guest} 1{proof}"), "");
        }
        let form = "Origin: http://evil.example\r\nContent-Type: text/plain\r\n";
        assert_eq!(death_notice(&format!("{guest} 1"), form), 403);
        assert_eq!(death_notice(&format!("{guest} 1"), "Sec-Fetch-Site: cross-site\r\n"), 403);
    });
    victim.assert_unharmed();
}

/// 4: a death notice with the proof of another node has no effect, once or twice.
#[test]
fn death_notice_with_the_proof_of_another() {
    let Some(mut victim) = Victim::new("proof") else { return };
    let guest = victim.guest_id();
    here(&victim.network, ATTACKER, || {
        let own = registration("evil_1", "10.77.0.3", 1);
        while_registered(ENDPOINT, own, |answer| {
            let Some(Message::Welcome(welcome)) = answer.message else { panic!("{answer:?}") };
            let proof: String = welcome.proof.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(proof.len(), 32);
            for _ in 0..2 {
                assert_eq!(death_notice(&format!("{guest} 1 {proof}"), ""), 204);
            }
        });
    });
    victim.assert_unharmed();
}

/// 5: a registration under the id of a member is refused, even with a high number, and the member goes on.
#[test]
fn stream_of_a_member_is_not_taken_over() {
    let Some(mut victim) = Victim::new("take") else { return };
    let (guest, uid) = (victim.guest_id(), victim.status()["job_uid"].as_str().unwrap().to_owned());
    here(&victim.network, ATTACKER, || {
        // With the member's own number the two streams would count as one.
        for number in [1, 2, 1_000_000_000] {
            for (uid, proof) in [("", vec![]), (&*uid, vec![]), (&*uid, vec![7; 16])] {
                for version in [2, PROTOCOL_VERSION] {
                    let mut impostor = registration(&guest, "10.77.0.2", 1);
                    impostor.protocol_version = version;
                    (impostor.stream, impostor.job_uid) = (number, uid.into());
                    impostor.proof.clone_from(&proof);
                    let goodbye = vec![AgentMessage::Goodbye(v1::Goodbye {})];
                    while_registered_with(ENDPOINT, impostor, goodbye, |answer| {
                        let Some(Message::Refusal(refusal)) = answer.message else {
                            panic!("{answer:?}")
                        };
                        assert!(matches!(refusal.reason, Some(Reason::OtherAgent(_))));
                    });
                }
            }
        }
    });
    let_pass(LEASE);
    victim.assert_unharmed();
}

/// 9: claims of a far round or of used restarts have no effect, with and without the run's id.
#[test]
fn far_claims() {
    let Some(mut victim) = Victim::new("claim") else { return };
    let uid = victim.status()["job_uid"].as_str().unwrap().to_owned();
    here(&victim.network, ATTACKER, || {
        for (uid, number) in [(&*uid, 1), ("", 2)] {
            let mut far = registration("evil_1", "10.77.0.3", 1);
            let round = v1::RoundId { term: 1 << 61, round: 1 << 61 };
            (far.job_uid, far.stream) = (uid.into(), number);
            far.known_round.as_mut().unwrap().round = Some(round);
            (far.restarts_used, far.charged_through) = (99, 1 << 61);
            while_registered(ENDPOINT, far, |answer| match answer.message {
                // Without the proof, an agent is a newcomer. It is welcomed, and its claims are ignored.
                Some(Message::Refusal(_)) => assert!(!uid.is_empty()),
                Some(Message::Welcome(welcome)) => {
                    assert!(uid.is_empty() && welcome.term < 100, "{welcome:?}");
                }
                answer => panic!("{answer:?}"),
            });
        }
        // Claims of a newcomer that has registered before, with a proof of its own, have no effect either.
        let own = registration("evil_2", "10.77.0.3", 1);
        let proof = while_registered(ENDPOINT, own, |answer| match answer.message {
            Some(Message::Welcome(welcome)) => welcome.proof,
            answer => panic!("{answer:?}"),
        });
        let mut near = registration("evil_2", "10.77.0.3", 1);
        let round = v1::RoundId { term: 1, round: 1_000 };
        (near.job_uid, near.stream, near.proof) = (uid.clone(), 2, proof);
        near.known_round.as_mut().unwrap().round = Some(round);
        (near.restarts_used, near.charged_through) = (99, 1_000);
        while_registered(ENDPOINT, near, |answer| {
            assert!(matches!(answer.message, Some(Message::Welcome(_))), "{answer:?}");
        });
    });
    victim.assert_unharmed();
}

/// 21: agents cannot be made to scan ports. They do not connect to an address that a node merely announces.
#[test]
fn reach_is_no_port_scanner() {
    let Some(mut victim) = Victim::new("reach") else { return };
    let target = here(&victim.network, 1, || TcpListener::bind("10.77.0.1:0").unwrap());
    target.set_nonblocking(true).unwrap();
    let port = target.local_addr().unwrap().port();
    let report = here(&victim.network, ATTACKER, || {
        let scanner = registration("evil_1", "10.77.0.1", port.into());
        while_registered(ENDPOINT, scanner, |answer| {
            assert!(matches!(answer.message, Some(Message::Welcome(_))), "{answer:?}");
            let mut stream = TcpStream::connect(ENDPOINT).unwrap();
            http(
                &mut stream,
                "GET /v1/reach HTTP/1.1\r\nHost: 10.77.0.1\r\nConnection: close\r\n\r\n",
            );
            let mut report = String::new();
            stream.read_to_string(&mut report).unwrap();
            report
        })
    });
    assert!(report.contains("its stream comes from 10.77.0.3"), "{report}");
    assert!(target.accept().is_err(), "an agent has connected there");
    victim.assert_unharmed();
}
