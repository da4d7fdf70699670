//! Decides whether another agent is present, or whether only its recorded datagrams are sent again (a replay).
//!
//! It is a challenge and response: the agent must return a nonce, a number that was not sent before. Without a secret any process can
//! answer, but a process that only replays datagrams cannot. With a secret only agents of the job can.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use ragent_rendezvous::jitter::Pauses;

use crate::endpoint::limits;

/// An agent that was asked.
#[derive(Debug)]
struct AskedAgent {
    /// The question without an answer yet.
    open: Option<Question>,
    /// The time of the last answer.
    answered: Option<Instant>,
    /// True if the agent has not answered in time.
    is_absent: bool,
}

#[derive(Debug)]
struct Question {
    nonce: u64,
    begun: Instant,
    repeat: Instant,
    pauses: Pauses,
}

/// The result of deadlines that have passed.
#[derive(Debug, Default)]
pub(super) struct ExpiredDeadlines {
    /// The questions to repeat: agent numbers and nonces.
    pub repeated: Vec<(u64, u64)>,
    /// True if an agent has not answered in time.
    pub has_ended: bool,
}

/// The questions of one agent to others.
#[derive(Debug)]
pub(super) struct Challenges {
    /// The number of questions that are open at once, while agents answer.
    at_once: usize,
    /// The time for an answer.
    limit: Duration,
    /// The time after which agents without an answer are no longer waited for, if none has answered.
    patience: Duration,
    next_nonce: u64,
    asked: BTreeMap<u64, AskedAgent>,
    /// The time of the first question since the patience was renewed.
    unanswered_since: Option<Instant>,
    is_patience_over: bool,
}

impl Challenges {
    /// Creates the questions of an agent. The nonces start at the random number `nonce`. They may be predictable, but must not repeat those
    /// of earlier processes.
    pub(super) fn new(nonce: u64, at_once: usize, limit: Duration, patience: Duration) -> Self {
        Self {
            at_once,
            limit,
            patience,
            next_nonce: nonce,
            asked: BTreeMap::new(),
            unanswered_since: None,
            is_patience_over: false,
        }
    }

    /// Asks agent `number`, unless it was asked or has answered recently, or too many questions are open. Returns the nonce to send.
    pub(super) fn ask(&mut self, now: Instant, number: u64) -> Option<u64> {
        let absent = self.asked.values().filter(|asked| asked.is_absent).count();
        let open = self.asked.values().filter(|asked| asked.open.is_some()).count();
        let is_recent = |asked: &AskedAgent| {
            let renew = asked.answered.map(|at| at + self.patience / 2);
            asked.is_absent || asked.open.is_some() || renew.is_some_and(|at| now < at)
        };
        // The number of questions doubles while no agent answers.
        if open >= (absent + self.at_once).min(limits::MAX_CHALLENGES)
            || self.asked.get(&number).is_some_and(is_recent)
        {
            return None;
        }
        let nonce = self.next_nonce;
        self.next_nonce = nonce.wrapping_add(1);
        let mut pauses = Pauses::new(self.limit / 20, self.limit / 2, nonce);
        let question = Question { nonce, begun: now, repeat: now + pauses.after_failure(), pauses };
        let new = AskedAgent { open: None, answered: None, is_absent: false };
        self.asked.entry(number).or_insert(new).open = Some(question);
        self.unanswered_since.get_or_insert(now);
        Some(nonce)
    }

    /// Notes that agent `number` has returned these nonces. Returns true if one of them answers its open question.
    pub(super) fn handle_answer(&mut self, now: Instant, number: u64, nonces: &[u64]) -> bool {
        let Some(asked) = self.asked.get_mut(&number) else { return false };
        let is_answer = asked.open.as_ref().is_some_and(|open| nonces.contains(&open.nonce));
        if is_answer {
            *asked = AskedAgent { open: None, answered: Some(now), is_absent: false };
        }
        is_answer
    }

    /// Notes that an agent has answered that this one waits for.
    pub(super) fn renew_patience(&mut self) {
        self.unanswered_since = None;
        self.is_patience_over = false;
    }

    /// Returns true if this agent should wait for agent `number`: it has answered, or has time left to do so.
    pub(super) fn may_be_present(&self, number: u64) -> bool {
        self.is_present(number) || (!self.is_absent(number) && !self.is_patience_over)
    }

    /// Returns true if agent `number` has answered.
    pub(super) fn is_present(&self, number: u64) -> bool {
        self.asked.get(&number).is_some_and(|asked| asked.answered.is_some() && !asked.is_absent)
    }

    /// Returns true if agent `number` has not answered in time.
    pub(super) fn is_absent(&self, number: u64) -> bool {
        self.asked.get(&number).is_some_and(|asked| asked.is_absent)
    }

    /// Returns the time of the next repetition or the end of a question.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let open = self.asked.values().filter_map(|asked| asked.open.as_ref());
        let due = open.map(|question| question.repeat.min(question.begun + self.limit));
        let over = self.unanswered_since.filter(|_| !self.is_patience_over);
        due.chain(over.map(|since| since + self.patience)).min()
    }

    /// Returns the time at which agent `number`, which has answered, is asked again.
    pub(super) fn renewal(&self, number: u64) -> Option<Instant> {
        let asked = self.asked.get(&number).filter(|asked| asked.open.is_none())?;
        asked.answered.map(|at| at + self.patience / 2)
    }

    /// Ends questions that have run out of time.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> ExpiredDeadlines {
        if self.unanswered_since.is_some_and(|since| now >= since + self.patience) {
            self.is_patience_over = true;
        }
        let mut timeouts = ExpiredDeadlines::default();
        for (number, asked) in &mut self.asked {
            let Some(question) = &mut asked.open else { continue };
            if now >= question.begun + self.limit {
                *asked = AskedAgent { open: None, answered: None, is_absent: true };
                timeouts.has_ended = true;
            } else if now >= question.repeat {
                question.repeat = now + question.pauses.after_failure();
                timeouts.repeated.push((*number, question.nonce));
            }
        }
        timeouts
    }

    /// Forgets all agents that `is_known` does not know.
    pub(super) fn retain(&mut self, is_known: impl Fn(u64) -> bool) {
        self.asked.retain(|number, _| is_known(*number));
    }
}

/// The answers to questions of others, in few datagrams with several nonces each.
#[derive(Debug)]
pub(super) struct Answers {
    /// The pause between two datagrams.
    pause: Duration,
    pending: Vec<(SocketAddr, u64)>,
    due: Option<Instant>,
    not_before: Option<Instant>,
}

impl Answers {
    /// Creates answers with this pause between two datagrams.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, pending: Vec::new(), due: None, not_before: None }
    }

    /// Notes a question of the agent at `peer`. It is dropped if the next datagram is full, or has several nonces for that host. The other
    /// agent repeats it.
    pub(super) fn handle_question(&mut self, now: Instant, peer: SocketAddr, nonce: u64) {
        let is_pending = self.pending.contains(&(peer, nonce));
        let of_source = self.pending.iter().filter(|(other, _)| other.ip() == peer.ip()).count();
        let has_room =
            self.pending.len() < limits::MAX_NONCES && of_source < limits::MAX_NONCES_OF_SOURCE;
        if !is_pending && has_room {
            self.pending.push((peer, nonce));
            self.due = Some(self.not_before.map_or(now, |earliest| earliest.max(now)));
        }
    }

    /// Returns the time of the next answer.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the agents to answer now, each with its nonces.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> BTreeMap<SocketAddr, Vec<u64>> {
        let mut answers: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        if self.due.is_none_or(|due| now < due) {
            return answers;
        }
        self.due = None;
        self.not_before = Some(now + self.pause);
        for (peer, nonce) in self.pending.drain(..) {
            answers.entry(peer).or_default().push(nonce);
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use ragent_base::sys::clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn challenges() -> (Instant, Challenges) {
        (clock::now_blocking(), Challenges::new(7, 1, SECOND, 10 * SECOND))
    }

    fn peer(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    /// Only the nonce of the open question is an answer. A present agent is asked again after a while, with another nonce.
    #[test]
    fn only_the_nonce_answers() {
        let (now, mut c) = challenges();
        let nonce = c.ask(now, 1).unwrap();
        assert!(c.may_be_present(1) && !c.is_present(1));
        assert_eq!(c.ask(now, 1), None);
        assert!(!c.handle_answer(now, 1, &[nonce + 1]) && !c.handle_answer(now, 2, &[nonce]));
        assert!(!c.is_present(1));
        assert!(c.handle_answer(now, 1, &[4, nonce]) && c.is_present(1));
        assert_eq!(c.ask(now + 4 * SECOND, 1), None);
        let again = c.ask(now + 5 * SECOND, 1).unwrap();
        assert_ne!(again, nonce);
        assert!(!c.handle_answer(now + 5 * SECOND, 1, &[nonce]) && c.is_present(1));
        c.handle_timeout(now + 6 * SECOND);
        assert!(c.is_absent(1) && !c.may_be_present(1));
        // A recorded answer has no effect. An absent agent is not asked again while it is known.
        assert!(!c.handle_answer(now + 6 * SECOND, 1, &[nonce, again]));
        assert_eq!(c.ask(now + 60 * SECOND, 1), None);
        c.retain(|_| false);
        assert!(c.ask(now + 60 * SECOND, 1).is_some());
    }

    /// A question is repeated a few times within its limit. At first one is open; more if agents do not answer.
    #[test]
    fn questions_are_bounded() {
        let (start, mut c) = challenges();
        let (mut now, mut sent, mut most) = (start, 0, Vec::new());
        for _ in 0..8 {
            let begun = (0..1000).filter_map(|number| c.ask(now, number)).count();
            most.push(begun);
            sent += begun;
            let end = now + SECOND;
            while let Some(due) = c.poll_timeout().filter(|due| *due <= end) {
                now = due;
                sent += c.handle_timeout(now).repeated.len();
            }
            now = end;
        }
        assert_eq!(most, [1, 2, 4, 8, 8, 8, 8, 8]);
        assert!(sent <= 47 * 8, "{sent}");
    }

    /// If no agent answers for long, this one waits only for agents that answered before.
    #[test]
    fn patience_ends() {
        let (now, mut c) = challenges();
        c.ask(now, 1).unwrap();
        c.handle_timeout(now + 10 * SECOND);
        assert!(!c.may_be_present(2));
        let nonce = c.ask(now + 10 * SECOND, 2).unwrap();
        assert!(c.handle_answer(now + 10 * SECOND, 2, &[nonce]));
        assert!(c.may_be_present(2) && !c.may_be_present(3));
        c.renew_patience();
        assert!(c.may_be_present(3));
    }

    /// Answers have a limited number of nonces, and a pause between them.
    #[test]
    fn answers_are_bounded() {
        let now = clock::now_blocking();
        let mut answers = Answers::new(SECOND);
        let peers = |port| (1..=10).map(move |host| SocketAddr::from(([10, 0, 0, host], port)));
        for nonce in 0..40 {
            peers(1).for_each(|peer| answers.handle_question(now, peer, nonce / 2));
        }
        assert_eq!(answers.poll_timeout(), Some(now));
        let sent = answers.handle_timeout(now);
        assert_eq!(sent.values().map(Vec::len).sum::<usize>(), limits::MAX_NONCES);
        assert_eq!(answers.poll_timeout(), None);
        // One host cannot take the places of others. Two agents with the same nonce each get an answer.
        for nonce in 0..40 {
            answers.handle_question(now, peer(1), nonce);
        }
        answers.handle_question(now, ([10, 0, 0, 2], 1).into(), 0);
        assert_eq!(answers.poll_timeout(), Some(now + SECOND));
        assert!(answers.handle_timeout(now).is_empty());
        let sent = answers.handle_timeout(now + SECOND);
        let counts: Vec<usize> = sent.values().map(Vec::len).collect();
        assert_eq!(counts, [limits::MAX_NONCES_OF_SOURCE, 1]);
    }

    proptest! {
        /// For any questions and answers at any time: no nonce is used twice, open questions and their answers are limited, an agent is
        /// present only after an answer, and the next deadline after a handled one is in the future.
        #[test]
        fn questions_have_an_end(steps in proptest::collection::vec((0..6_u64, 0..5_u8, 0..700_u32), 1..200)) {
            let (mut now, mut c) = challenges();
            let mut nonces = BTreeMap::new();
            let mut used = BTreeSet::new();
            let mut answered = BTreeSet::new();
            for (number, step, millis) in steps {
                now += Duration::from_millis(millis.into());
                let repeated = c.handle_timeout(now).repeated;
                prop_assert!(repeated.len() <= limits::MAX_CHALLENGES);
                prop_assert!(c.poll_timeout().is_none_or(|due| due > now));
                match step {
                    0 | 1 => if let Some(nonce) = c.ask(now, number) {
                        prop_assert!(used.insert(nonce));
                        nonces.insert(number, nonce);
                    },
                    2 => if let Some(nonce) = nonces.get(&number) && c.handle_answer(now, number, &[*nonce]) {
                        answered.insert(number);
                    },
                    3 => { c.handle_answer(now, number, &[99]); }
                    _ => c.retain(|known| known != number),
                }
                let open = c.asked.values().filter(|asked| asked.open.is_some()).count();
                prop_assert!(open <= limits::MAX_CHALLENGES);
                for number in 0..6 {
                    prop_assert!(!c.is_present(number) || answered.contains(&number));
                }
            }
        }
    }
}
