//! Messages between voters are received as they were sent, and malformed ones are refused.

use proptest::prelude::*;
use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, JobUid, ProofKey, Round},
    limits::NUMBER_MAX,
    message::{JobResult, Outcome, WorkerEnd},
    settings::{HostMember, HostTally, JobState},
    training::{CHARGED_ROUNDS_MAX, ChargedRound, MEMORY_TRIES_MAX, Training, TriedCheckpoint},
};

use super::*;
use crate::convert::{
    account::some_totals,
    tests::{checkpoint_id, known_job},
};

/// The header of a job's messages.
pub(in crate::convert) fn header() -> ElectionHeader {
    ElectionHeader {
        run_id: RunId::new("job7"),
        listed: Some(std::array::from_fn(|n| n as u8)),
        voter_lease: Duration::from_secs(3),
    }
}

fn with<Body>(body: Body) -> VoterMessage<Body> {
    VoterMessage {
        voter: VoterId(u64::MAX),
        address: VoterAddress::new("n0:29400"),
        knows: Knowledge { has_round: true, version: version() },
        process: NodeId::new("node1_17_ab"),
        has_just_started: true,
        highest: Term(NUMBER_MAX),
        job: Some(known_job()),
        ended: (0..9).map(|n| JobUid::new(format!("uid{n}"))).collect(),
        sequence: 17,
        body,
    }
}

/// A message of a process that knows no job.
fn without_job<Body>(body: Body) -> VoterMessage<Body> {
    let message = with(body);
    VoterMessage {
        knows: Knowledge::default(),
        has_just_started: false,
        job: None,
        ended: Vec::new(),
        ..message
    }
}

fn version() -> Version {
    Version { term: Term(9 << 16 | 3), number: 4 }
}

fn job_state() -> JobState {
    let tally = HostTally {
        host_name: "node1".to_owned(),
        address: "10.0.0.1".to_owned(),
        strikes: 2,
        early_losses: 1,
        suspicions: 3,
        suspected_for: Duration::from_millis(3_600_001),
    };
    let charged = ChargedRound {
        round: Round(40),
        step: Some(48_211),
        rank: GlobalRank(3),
        end: WorkerEnd::Hung(Duration::from_millis(900_000)),
        at: Duration::from_millis(86_400_001),
        began_from_memory: true,
    };
    let (time, restarts) = some_totals();
    JobState {
        job_uid: JobUid::new("uid"),
        born_ms: 1_767_225_600_123,
        term: Term(8),
        round: Round(41),
        round_size: 3,
        is_adopted: true,
        host: Some(HostMember {
            rank: GroupRank(2),
            node: NodeId::new("n"),
            host_name: "node2".to_owned(),
            is_confirmed_dead: true,
        }),
        restarts_used: 5,
        charged_through: Round(40),
        host_tallies: vec![tally; 64],
        free_rounds: 6,
        early_free_rounds: 7,
        is_early: true,
        closed: Some(Outcome {
            result: JobResult::Succeeded,
            first_failure: None,
            other_failures: 0,
            further_failures: Vec::new(),
            restarts_used: 5,
            complete_step: Some(7),
        }),
        training: Training {
            highest_step: Some(48_211),
            charged_rounds: vec![charged; CHARGED_ROUNDS_MAX],
            rounds_without_progress: 3,
            saved_step: Some(48_000),
            complete_step: Some(47_000),
            notices: 3,
            has_steps: true,
            longest_pause: Duration::from_millis(1_200_001),
            first_step: Duration::from_millis(182_003),
            memory: Some(TriedCheckpoint { checkpoint: checkpoint_id(), tries: MEMORY_TRIES_MAX }),
            restarts_forgiven: 2,
            step_at_charge: Some(48_100),
        },
        time,
        restarts,
        proof_key: Some(ProofKey::new([3; 32])),
    }
}

fn replica(job_state: Option<JobState>) -> Box<Replica> {
    let slot = |n: u64| VoterSlot {
        address: VoterAddress::new(format!("n{n}:29400")),
        voter: (n > 0).then_some(VoterId(n)),
    };
    let before = job_state.as_ref().map(|_| vec![slot(4)]);
    let lists = Lists { before, last: (0..3).map(slot).collect() };
    Box::new(Replica { version: version(), lists, job_state })
}

fn answer() -> Answer {
    Answer {
        is_granted: true,
        is_connected: true,
        workers_for: Duration::from_millis(2_900),
        former: Some((Term(8), NodeId::new("m"))),
        replica: Some(replica(Some(job_state()))),
    }
}

/// Each kind of message.
pub(in crate::convert) fn all() -> Vec<FromVoter> {
    let term = Term(9 << 16 | 3);
    let begun = JobState::new(JobUid::new("uid"));
    let requests = [
        Request::PreVote,
        Request::Vote { term },
        Request::Renew { term, replica: replica(None), is_copied: false },
        Request::Renew { term, replica: replica(Some(begun)), is_copied: false },
        Request::Renew { term, replica: replica(Some(job_state())), is_copied: true },
        Request::Release { term },
        Request::Leave,
        Request::Hello,
    ];
    let refused = Answer { is_granted: false, former: None, replica: None, ..answer() };
    let unknown = [
        FromVoter::Request(without_job(Request::Hello)),
        FromVoter::Answer(without_job(refused.clone())),
    ];
    let requests = requests.map(|request| FromVoter::Request(with(request)));
    let answers = [answer(), refused].map(|answer| FromVoter::Answer(with(answer)));
    requests.into_iter().chain(answers).chain(unknown).collect()
}

/// Returns the error of a message that `change` makes invalid.
fn refusal(message: FromVoter, change: impl FnOnce(&mut v1::VoterMessage)) -> Malformed {
    let bytes = encode(&header(), message);
    let mut message = v1::VoterMessage::decode(bytes.as_slice()).unwrap();
    change(&mut message);
    decode(&message.encode_to_vec()).unwrap_err()
}

/// Returns the error of a renewal whose state `change` makes invalid.
fn refusal_of_job_state(change: impl FnOnce(&mut v1::JobState)) -> Malformed {
    let replica = replica(Some(job_state()));
    let renew = Request::Renew { term: Term(1), replica, is_copied: false };
    refusal(FromVoter::Request(with(renew)), |message| {
        let Some(voter_message::Body::Renew(renew)) = &mut message.body else {
            panic!("{message:?}")
        };
        change(renew.replica.as_mut().unwrap().job_state.as_mut().unwrap());
    })
}

/// Every message is received as it was sent, with all fields of the state.
#[test]
fn voters_are_understood() {
    for sent in all() {
        let bytes = encode(&header(), sent.clone());
        assert_eq!(decode(&bytes), Ok((header(), sent)));
    }
}

/// The time for which workers may run never becomes shorter: the winner of an election waits for
/// it.
#[test]
fn time_of_workers_is_rounded_up() {
    for (nanos, millis) in [(0, 0), (1, 1), (1_000_000, 1), (2_000_001, 3)] {
        let sent = Answer { workers_for: Duration::from_nanos(nanos), ..answer() };
        let received = decode(&encode(&header(), FromVoter::Answer(with(sent)))).unwrap();
        let (_, FromVoter::Answer(received)) = received else { panic!("{received:?}") };
        assert_eq!(received.body.workers_for, Duration::from_millis(millis));
    }
}

/// A message of another protocol version is refused with that reason, even if other fields are invalid, too.
#[test]
fn other_versions_are_named() {
    let error = refusal(FromVoter::Request(with(Request::PreVote)), |message| {
        message.protocol_version = 9;
        message.body = None;
    });
    assert_eq!(error, Malformed::ProtocolVersion { ours: PROTOCOL_VERSION, theirs: 9 });
    let text = error.to_string();
    assert!(text.contains('9') && text.contains(&PROTOCOL_VERSION.to_string()), "{text}");
}

/// A message of another version shows the job that its sender has, if it has a round. A version that does
/// not name it shows at least that there is one.
#[test]
fn other_versions_show_their_job() {
    let shown = |change: &dyn Fn(&mut v1::VoterMessage)| {
        let bytes = encode(&header(), FromVoter::Request(with(Request::PreVote)));
        let mut message = v1::VoterMessage::decode(&*bytes).unwrap();
        (message.has_round, message.protocol_version) = (true, 4);
        change(&mut message);
        shown_by_other_version(&message.encode_to_vec())
    };
    let run_id = header().run_id;
    assert_eq!(shown(&|_| {}), Some((run_id.clone(), known_job())));
    let (same, unnamed) = shown(&|m| m.job = None).unwrap();
    assert_eq!(same, run_id);
    assert_eq!(unnamed.voters, [with(Request::PreVote).address]);
    let newer = |message: &mut v1::VoterMessage| message.protocol_version = PROTOCOL_VERSION + 1;
    assert_eq!(shown(&newer), Some((same, known_job())));
    let without_job = |message: &mut v1::VoterMessage| {
        newer(message);
        message.job = None;
    };
    assert_eq!(shown(&without_job), None, "it has ended");
    assert_eq!(shown(&|m| m.has_round = false), None);
    assert_eq!(shown(&|m| m.protocol_version = PROTOCOL_VERSION), None);
    assert_eq!(shown(&|m| m.address.clear()), None);
    assert_eq!(shown_by_other_version(&[0xff]), None);
}

/// A missing, too long or invalid field is refused with an error that names it.
#[test]
fn malformed_messages_are_refused_by_name() {
    let request = |change: &dyn Fn(&mut v1::VoterMessage)| {
        refusal(FromVoter::Request(with(Request::PreVote)), change)
    };
    assert_eq!(decode(&[0xff]), Err(Malformed::Encoding));
    assert_eq!(request(&|m| m.run_id.clear()), Malformed::Missing("voter.run_id"));
    assert_eq!(request(&|m| m.process.clear()), Malformed::Missing("voter.process"));
    assert_eq!(request(&|m| m.process = "\u{1b}".into()), Malformed::OutOfRange("voter.process"));
    assert_eq!(request(&|m| m.body = None), Malformed::Missing("voter.body"));
    assert_eq!(request(&|m| m.address.clear()), Malformed::Missing("voter.address"));
    assert_eq!(request(&|m| m.version = None), Malformed::Missing("voter.version"));
    assert_eq!(request(&|m| m.highest = NUMBER_MAX + 1), Malformed::OutOfRange("voter.highest"));
    let job = |change: &dyn Fn(&mut v1::KnownJob)| request(&|m| change(m.job.as_mut().unwrap()));
    assert_eq!(job(&|j| j.job_uid.clear()), Malformed::Missing("known_job.job_uid"));
    let too_long = Malformed::TooLong { field: "known_job.voters", len: 11, limit: 10 };
    assert_eq!(job(&|j| j.voters.push("n10:1".into())), too_long);
    assert_eq!(job(&|j| j.voters[0].clear()), Malformed::Missing("known_job.voters"));
    assert_eq!(
        request(&|m| m.job.as_mut().unwrap().leads.as_mut().unwrap().term = NUMBER_MAX + 1),
        Malformed::OutOfRange("leads.term")
    );
    let too_long = Malformed::TooLong { field: "voter.ended", len: 10, limit: 9 };
    assert_eq!(request(&|m| m.ended.push("uid9".into())), too_long);
    assert_eq!(request(&|m| m.ended[8].clear()), Malformed::Missing("voter.ended"));
    assert_eq!(request(&|m| m.ended[0] = "\u{1b}".into()), Malformed::OutOfRange("voter.ended"));
    for len in [1, 31, 33] {
        assert_eq!(request(&|m| m.listed = vec![0; len]), Malformed::OutOfRange("voter.listed"));
    }
    let body = |request| {
        let no_body = |body| refusal(FromVoter::Request(with(Request::PreVote)), |m| m.body = body);
        no_body(Some(request))
    };
    use voter_message::Body as Wire;
    let term = NUMBER_MAX + 1;
    assert_eq!(body(Wire::Vote(voter_message::Vote { term })), Malformed::OutOfRange("vote.term"));
    let renew = voter_message::Renew { term: 1, ..voter_message::Renew::default() };
    assert_eq!(body(Wire::Renew(renew)), Malformed::Missing("renew.replica"));
    let mut wrong = voter_message::Answer::from(answer());
    wrong.replica.as_mut().unwrap().version.as_mut().unwrap().number = u64::MAX;
    assert_eq!(body(Wire::Answer(wrong)), Malformed::OutOfRange("version.number"));
    let mut wrong = voter_message::Answer::from(answer());
    wrong.replica.as_mut().unwrap().last = vec![v1::VoterSlot::default(); 6];
    let too_long = Malformed::TooLong { field: "replica.last", len: 6, limit: 5 };
    assert_eq!(body(Wire::Answer(wrong)), too_long);
    let wrong = voter_message::Answer { workers_for_ms: u64::MAX, ..answer().into() };
    assert_eq!(body(Wire::Answer(wrong)), Malformed::OutOfRange("answer.workers_for_ms"));
}

/// Every field of a job's state is checked.
#[test]
fn malformed_memories_are_refused_by_name() {
    let out_of_range = |change: &dyn Fn(&mut v1::JobState), field| {
        assert_eq!(refusal_of_job_state(change), Malformed::OutOfRange(field));
    };
    out_of_range(&|m| m.term = u64::MAX, "job_state.term");
    out_of_range(&|m| m.round = u64::MAX, "job_state.round");
    out_of_range(&|m| m.round_size = u32::MAX, "job_state.round_size");
    out_of_range(&|m| m.charged_through = u64::MAX, "job_state.charged_through");
    out_of_range(&|m| m.proof_key = vec![1; 16], "job_state.proof_key");
    let training = |change: &dyn Fn(&mut v1::Training), field| {
        out_of_range(&|m| change(m.training.as_mut().unwrap()), field);
    };
    training(&|t| t.longest_pause_ms = u64::MAX, "training.longest_pause_ms");
    training(&|t| t.first_step_ms = u64::MAX, "training.first_step_ms");
    for tries in [0, 4] {
        let change = |t: &mut v1::Training| t.memory.as_mut().unwrap().tries = tries;
        training(&change, "tried_checkpoint.tries");
    }
    let missing = refusal_of_job_state(|m| {
        m.training.as_mut().unwrap().memory.as_mut().unwrap().checkpoint = None;
    });
    assert_eq!(missing, Malformed::Missing("tried_checkpoint.checkpoint"));
    out_of_range(&|m| m.host_tallies[0].address = "\n".into(), "host_tally.address");
    out_of_range(&|m| m.host.as_mut().unwrap().node_id = "\0".into(), "host.node_id");
    out_of_range(&|m| m.host.as_mut().unwrap().host_name = "\n".into(), "host.host_name");
    assert_eq!(
        refusal_of_job_state(|m| m.job_uid.clear()),
        Malformed::Missing("job_state.job_uid")
    );
    let too_many = refusal_of_job_state(|m| m.host_tallies.push(v1::HostTally::default()));
    let field = "job_state.host_tallies";
    assert_eq!(too_many, Malformed::TooLong { field, len: 65, limit: 64 });
}

proptest! {
    /// Decoding never panics, however the bytes were cut or changed.
    #[test]
    fn no_bytes_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = encode(&header(), which.get(&all()).clone());
        let place = at.index(bytes.len());
        bytes[place] = byte;
        let _ = (decode(&bytes), decode(&noise), decode(&bytes[..place]));
    }
}
