//! Divides hosts into the branches of a tree, so that each host has a limited number of connections.

use super::order::TargetHost;

/// A branch: a host that is reached directly, and the hosts that it reaches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Branch {
    pub(super) head: TargetHost,
    pub(super) below: Vec<TargetHost>,
}

/// Splits `hosts` into at most `fanout` branches of about the same size, in their order. Up to `fanout` hosts are each reached directly.
pub(super) fn split(hosts: Vec<TargetHost>, fanout: u32) -> Vec<Branch> {
    let count = hosts.len().min(fanout.max(1) as usize);
    let len = hosts.len();
    let mut hosts = hosts.into_iter();
    let size = |branch: usize| (branch + 1) * len / count - branch * len / count;
    let branch = |number| {
        let head = hosts.next()?;
        let below = hosts.by_ref().take(size(number) - 1).collect();
        Some(Branch { head, below })
    };
    (0..count).filter_map(branch).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts(count: u32) -> Vec<TargetHost> {
        (0..count).map(|number| TargetHost { number, target: format!("n{number}") }).collect()
    }

    /// Hosts are reached directly if there are at most `fanout`.
    #[test]
    fn few_hosts() {
        let branches = split(hosts(3), 3);
        assert!(branches.len() == 3 && branches.iter().all(|branch| branch.below.is_empty()));
        assert_eq!(split(hosts(0), 3), []);
    }

    proptest! {
        /// Each host is in one branch, in order. The branches differ by at most one host.
        #[test]
        fn branches_are_even(count in 0u32..200, fanout in 0u32..40) {
            let branches = split(hosts(count), fanout);
            prop_assert!(branches.len() <= fanout.max(1) as usize);
            let sizes: Vec<usize> = branches.iter().map(|branch| branch.below.len()).collect();
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            prop_assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1));
            let all = branches.into_iter().flat_map(|branch| [vec![branch.head], branch.below].concat());
            prop_assert_eq!(all.collect::<Vec<_>>(), hosts(count));
        }
    }
}
