//! Decides how many voters a job has, and on which of its hosts they are.

use std::fmt;

/// The number of voters of a job.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum VoterCount {
    /// One. The coordinator is not elected.
    #[default]
    One,
    /// Three. One of them may be lost.
    Three,
    /// Five. Two of them may be lost at the same time.
    Five,
}

impl VoterCount {
    /// All counts, the largest first.
    const DESCENDING: [Self; 3] = [Self::Five, Self::Three, Self::One];

    /// Returns the count with this number of voters, if there is one.
    pub fn of(number: usize) -> Option<Self> {
        Self::DESCENDING.into_iter().find(|count| count.number() == number)
    }

    /// Returns the number of voters for a job of at least `min` nodes on `hosts` hosts, if the user has not
    /// given one. It is at most 2·`min` - 1, so that a majority never needs more than `min` nodes.
    pub fn for_job(min: u32, hosts: usize) -> Self {
        match (min, hosts) {
            (3.., 5..) => Self::Five,
            (2.., 3..) => Self::Three,
            (_, _) => Self::One,
        }
    }

    /// Returns the largest count that is neither above this one nor above `hosts`.
    #[must_use]
    pub fn at_most(self, hosts: usize) -> Self {
        let fits = |count: &Self| *count <= self && count.number() <= hosts;
        Self::DESCENDING.into_iter().find(fits).unwrap_or_default()
    }

    /// Returns the number of voters.
    pub fn number(self) -> usize {
        match self {
            Self::One => 1,
            Self::Three => 3,
            Self::Five => 5,
        }
    }

    /// Returns the number of voters that must agree to elect a coordinator.
    pub fn majority(self) -> usize {
        self.number() / 2 + 1
    }

    /// Returns true if voters are elected from several hosts.
    pub fn is_several(self) -> bool {
        self != Self::One
    }

    /// Chooses the hosts of the voters from a list of `hosts` hosts: the first, the last, and the others
    /// evenly between them. Hosts that are far apart in a list are often in different racks. Empty if there
    /// are fewer hosts than voters.
    pub fn choose(self, hosts: usize) -> Vec<usize> {
        let number = self.number();
        if hosts < number {
            return Vec::new();
        }
        let gaps = (number - 1).max(1);
        (0..number).map(|voter| voter * (hosts - 1) / gaps).collect()
    }
}

impl fmt::Display for VoterCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The default number of voters needs no more nodes than MIN.
    #[test]
    fn default_count() {
        for (min, hosts, expected) in [
            (1, 1, 1),
            (1, 2, 1),
            (1, 3, 1),
            (1, 1000, 1),
            (2, 2, 1),
            (2, 3, 3),
            (2, 4, 3),
            (2, 5, 3),
            (2, 1000, 3),
            (3, 3, 3),
            (3, 4, 3),
            (3, 5, 5),
            (4, 4, 3),
            (1000, 1000, 5),
            (5, 2, 1),
        ] {
            assert_eq!(VoterCount::for_job(min, hosts).number(), expected, "{min} of {hosts}");
        }
    }

    /// The first, the middle and the last host of a list are chosen, or five evenly.
    #[test]
    fn chosen_hosts() {
        use VoterCount::{Five, One, Three};
        for (count, hosts, expected) in [
            (One, 1, &[0][..]),
            (One, 9, &[0]),
            (Three, 2, &[]),
            (Three, 3, &[0, 1, 2]),
            (Three, 4, &[0, 1, 3]),
            (Three, 5, &[0, 2, 4]),
            (Three, 16, &[0, 7, 15]),
            (Five, 4, &[]),
            (Five, 5, &[0, 1, 2, 3, 4]),
            (Five, 9, &[0, 2, 4, 6, 8]),
            (Five, 16, &[0, 3, 7, 11, 15]),
        ] {
            assert_eq!(count.choose(hosts), expected, "{count} of {hosts}");
            assert_eq!(count.is_several(), count.to_string() != "1");
        }
    }

    /// If there are too few hosts, there are fewer voters.
    #[test]
    fn too_few_hosts() {
        use VoterCount::{Five, One, Three};
        for (asked, hosts, expected) in [
            (Five, 9, Five),
            (Five, 5, Five),
            (Five, 4, Three),
            (Five, 2, One),
            (Three, 9, Three),
            (Three, 2, One),
            (One, 9, One),
            (Three, 0, One),
        ] {
            assert_eq!(asked.at_most(hosts), expected, "{asked} of {hosts}");
        }
    }

    /// Only 1, 3 and 5 are numbers of voters.
    #[test]
    fn numbers() {
        let counts: Vec<_> = (0..9).filter_map(VoterCount::of).collect();
        assert_eq!(counts, [VoterCount::One, VoterCount::Three, VoterCount::Five]);
        let majorities: Vec<_> = counts.iter().map(|count| count.majority()).collect();
        assert_eq!(majorities, [1, 2, 3]);
    }

    proptest! {
        /// The default never needs more than MIN nodes, or more hosts than there are, and its hosts differ.
        #[test]
        fn default_is_never_too_large(min in 1u32..40, hosts in 1usize..2000) {
            let count = VoterCount::for_job(min, hosts);
            prop_assert!(count.number() < 2 * min as usize);
            prop_assert!(count.majority() <= min as usize);
            let chosen = count.choose(hosts);
            prop_assert_eq!(chosen.len(), count.number());
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(chosen.last().is_none_or(|last| *last < hosts));
        }
    }
}
