//! Chooses processors near an accelerator: torchrun's `--numa-binding`.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{Gpu, Host};

/// Numbers of logical processors.
pub type CpuSet = BTreeSet<u32>;

/// The set of processors that a worker is bound to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NumaBinding {
    /// All processors of the NUMA node of its accelerator.
    Node,
    /// All processors of the socket of that node.
    Socket,
    /// A share of that node's cores that no other worker has.
    Exclusive,
    /// The cores of that node that share one cache.
    CoreComplex,
}

impl FromStr for NumaBinding {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "node" => Ok(Self::Node),
            "socket" => Ok(Self::Socket),
            "exclusive" => Ok(Self::Exclusive),
            "core-complex" => Ok(Self::CoreComplex),
            _ => Err(()),
        }
    }
}

/// A reason why no processors can be chosen.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NumaError {
    /// There is no accelerator for a worker.
    #[error("local rank {local_rank} has no accelerator: {accelerators} are visible")]
    NoAccelerator {
        /// The worker.
        local_rank: usize,
        /// The number of accelerators.
        accelerators: usize,
    },
    /// A file that is needed cannot be read or parsed.
    #[error("`{}` cannot be read", .0.display())]
    Unknown(PathBuf),
    /// More accelerators share a node than it has cores.
    #[error("NUMA node {node} has {cores} cores for {accelerators} accelerators")]
    TooFewCores {
        /// The node.
        node: u32,
        /// The number of its cores that this process may use.
        cores: usize,
        /// The number of its accelerators.
        accelerators: usize,
    },
    /// This process may use none of the node's processors.
    #[error("this process may not use any processor of NUMA node {0}")]
    NoProcessor(u32),
}

/// Returns the processors of each of `workers` workers; worker `n` uses `gpus[n]`.
///
/// # Errors
///
/// Returns [`NumaError`] if a worker would have none.
pub fn bind(
    binding: NumaBinding,
    workers: usize,
    gpus: &[Gpu],
    host: &impl Host,
) -> Result<Vec<CpuSet>, NumaError> {
    if gpus.len() < workers {
        let (local_rank, accelerators) = (gpus.len(), gpus.len());
        return Err(NumaError::NoAccelerator { local_rank, accelerators });
    }
    let topology = Topology { host };
    let nodes = gpus.iter().map(|gpu| topology.node_of(gpu)).collect::<Result<Vec<_>, _>>()?;
    (0..workers)
        .map(|worker| {
            let node = nodes[worker];
            let sharing = nodes.iter().filter(|other| **other == node).count();
            let index = nodes[..worker].iter().filter(|other| **other == node).count();
            let cpus = match binding {
                NumaBinding::Node => topology.cpus_of_node(node)?,
                NumaBinding::Socket => topology.cpus_of_socket(node)?,
                NumaBinding::Exclusive => topology.share_of_node(node, index, sharing)?,
                NumaBinding::CoreComplex => topology.core_complex(node, index)?,
            };
            if cpus.is_empty() { Err(NumaError::NoProcessor(node)) } else { Ok(cpus) }
        })
        .collect()
}

/// The topology of the machine, as the kernel shows it in `/sys`.
struct Topology<'a, H> {
    host: &'a H,
}

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

impl<H: Host> Topology<'_, H> {
    fn node_of(&self, gpu: &Gpu) -> Result<u32, NumaError> {
        let path = Path::new("/sys/bus/pci/devices").join(&gpu.pci_address).join("numa_node");
        let node: i64 = self.read(&path)?.trim().parse().map_err(|_| NumaError::Unknown(path))?;
        // On machines with a single node, many firmwares report -1.
        Ok(u32::try_from(node).unwrap_or(0))
    }

    /// The processors of a node that this process may use.
    fn cpus_of_node(&self, node: u32) -> Result<CpuSet, NumaError> {
        let all = self.list(&Path::new(NODES).join(format!("node{node}/cpulist")))?;
        Ok(all.intersection(&self.host.cpu_set()).copied().collect())
    }

    fn cpus_of_socket(&self, node: u32) -> Result<CpuSet, NumaError> {
        let own = self.cpus_of_node(node)?;
        let first = own.first().ok_or(NumaError::NoProcessor(node))?;
        let socket = self.socket_of(*first)?;
        let mut cpus = CpuSet::new();
        for name in self.host.list(Path::new(NODES)) {
            let number = name.strip_prefix("node").and_then(|number| number.parse().ok());
            let Some(other) = number else { continue };
            let those = self.cpus_of_node(other)?;
            // A node without processors has only memory.
            if those.first().map(|cpu| self.socket_of(*cpu)).transpose()? == Some(socket) {
                cpus.extend(those);
            }
        }
        Ok(cpus)
    }

    fn socket_of(&self, cpu: u32) -> Result<i64, NumaError> {
        let path = Path::new(CPUS).join(format!("cpu{cpu}/topology/physical_package_id"));
        self.read(&path)?.trim().parse().map_err(|_| NumaError::Unknown(path))
    }

    /// The `index`-th of `sharing` shares of a node's cores; the first shares get the remainder.
    fn share_of_node(&self, node: u32, index: usize, sharing: usize) -> Result<CpuSet, NumaError> {
        let mut cores: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in self.cpus_of_node(node)? {
            let path = Path::new(CPUS).join(format!("cpu{cpu}/topology/thread_siblings_list"));
            let core = self.list(&path)?.first().copied().unwrap_or(cpu);
            cores.entry(core).or_default().insert(cpu);
        }
        let (each, surplus) = (cores.len() / sharing, cores.len() % sharing);
        if each == 0 {
            let (cores, accelerators) = (cores.len(), sharing);
            return Err(NumaError::TooFewCores { node, cores, accelerators });
        }
        let start = index * each + index.min(surplus);
        let count = each + usize::from(index < surplus);
        Ok(cores.into_values().skip(start).take(count).flatten().collect())
    }

    /// The `index`-th group of a node's processors that share their last-level cache; the largest
    /// groups come first.
    fn core_complex(&self, node: u32, index: usize) -> Result<CpuSet, NumaError> {
        let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in self.cpus_of_node(node)? {
            let first = self.sharing_last_cache(cpu)?.first().copied().unwrap_or(cpu);
            groups.entry(first).or_default().insert(cpu);
        }
        let mut groups: Vec<(u32, CpuSet)> = groups.into_iter().collect();
        groups.sort_by_key(|(first, cpus)| (Reverse(cpus.len()), *first));
        let count = groups.len().max(1);
        let group = groups.into_iter().nth(index % count);
        group.map(|(_, cpus)| cpus).ok_or(NumaError::NoProcessor(node))
    }

    fn sharing_last_cache(&self, cpu: u32) -> Result<CpuSet, NumaError> {
        let caches = Path::new(CPUS).join(format!("cpu{cpu}/cache"));
        let mut last: Option<(u32, CpuSet)> = None;
        for name in self.host.list(&caches) {
            let cache = caches.join(&name);
            let kind = self.host.read(&cache.join("type")).unwrap_or_default();
            if !name.starts_with("index") || !["Unified", "Data"].contains(&kind.trim()) {
                continue;
            }
            let path = cache.join("level");
            let level = self.read(&path)?.trim().parse().map_err(|_| NumaError::Unknown(path))?;
            if last.as_ref().is_none_or(|(highest, _)| *highest < level) {
                last = Some((level, self.list(&cache.join("shared_cpu_list"))?));
            }
        }
        Ok(last.map(|(_, cpus)| cpus).unwrap_or_default())
    }

    fn read(&self, path: &Path) -> Result<String, NumaError> {
        self.host.read(path).ok_or_else(|| NumaError::Unknown(path.to_owned()))
    }

    /// Reads a list such as `0-3,8-11`.
    fn list(&self, path: &Path) -> Result<CpuSet, NumaError> {
        let text = self.read(path)?;
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
        };
        let parts = text.trim().split(',').filter(|part| !part.is_empty());
        let ranges = parts.map(range).collect::<Option<Vec<_>>>();
        let ranges = ranges.ok_or_else(|| NumaError::Unknown(path.to_owned()))?;
        // No machine has more; the bound keeps a malformed file from taking long.
        Ok(ranges.into_iter().flatten().take(MAX_CPUS).collect())
    }
}

const MAX_CPUS: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host::FakeHost;

    /// Two sockets with two nodes each; a node has four cores of two threads, in pairs that share
    /// a cache: node 0 has the processors 0 to 3 and 16 to 19, node 1 4 to 7 and 20 to 23, ….
    fn machine() -> FakeHost {
        let mut host = FakeHost { cpus: 32, ..FakeHost::default() };
        for node in 0..4u32 {
            let (a, b) = (4 * node, 4 * node + 16);
            host.put(
                &format!("{NODES}/node{node}/cpulist"),
                &format!("{a}-{},{b}-{}\n", a + 3, b + 3),
            );
        }
        host.put(&format!("{NODES}/possible"), "0-3");
        for cpu in 0..32u32 {
            let (core, socket) = (cpu % 16, cpu % 16 / 8);
            let topology = format!("{CPUS}/cpu{cpu}/topology");
            host.put(&format!("{topology}/physical_package_id"), &socket.to_string());
            host.put(&format!("{topology}/thread_siblings_list"), &format!("{core},{}", core + 16));
            let pair = core / 2 * 2;
            let shared = format!("{pair}-{},{}-{}", pair + 1, pair + 16, pair + 17);
            let caches = [
                ("index0", "Data", "1", format!("{core}")),
                ("index1", "Instruction", "9", "0-31".to_owned()),
                ("index3", "Unified", "3", shared),
            ];
            for (index, kind, level, cpus) in caches {
                let cache = format!("{CPUS}/cpu{cpu}/cache/{index}");
                host.put(&format!("{cache}/type"), kind);
                host.put(&format!("{cache}/level"), level);
                host.put(&format!("{cache}/shared_cpu_list"), &cpus);
            }
        }
        host
    }

    /// GPUs on these nodes.
    fn gpus(host: &mut FakeHost, nodes: &[i32]) -> Vec<Gpu> {
        let gpu = |(index, node): (usize, &i32)| {
            let pci_address = format!("0000:{index:02x}:00.0");
            host.put(
                &format!("/sys/bus/pci/devices/{pci_address}/numa_node"),
                &format!("{node}\n"),
            );
            Gpu { uuid: String::new(), pci_address }
        };
        nodes.iter().enumerate().map(gpu).collect()
    }

    fn bound(binding: NumaBinding, nodes: &[i32]) -> Vec<Vec<u32>> {
        let mut host = machine();
        let gpus = gpus(&mut host, nodes);
        let sets = bind(binding, gpus.len(), &gpus, &host).unwrap();
        sets.into_iter().map(|set| set.into_iter().collect()).collect()
    }

    /// `node` is the whole node; a node that the firmware does not know is the first.
    #[test]
    fn node() {
        let node1 = vec![4, 5, 6, 7, 20, 21, 22, 23];
        assert_eq!(bound(NumaBinding::Node, &[1, 1]), [node1.clone(), node1]);
        assert_eq!(bound(NumaBinding::Node, &[-1])[0][..4], [0, 1, 2, 3]);
    }

    /// `socket` is every node of the socket.
    #[test]
    fn socket() {
        let second: Vec<u32> = (8..16).chain(24..32).collect();
        assert_eq!(bound(NumaBinding::Socket, &[3]), [second]);
    }

    /// `exclusive` divides cores, never the threads of one; the first GPUs get the remainder.
    #[test]
    fn exclusive() {
        assert_eq!(
            bound(NumaBinding::Exclusive, &[0, 0, 0]),
            [vec![0, 1, 16, 17], vec![2, 18], vec![3, 19]]
        );
        let mut host = machine();
        let gpus = gpus(&mut host, &[0; 5]);
        assert_eq!(
            bind(NumaBinding::Exclusive, 5, &gpus, &host),
            Err(NumaError::TooFewCores { node: 0, cores: 4, accelerators: 5 })
        );
    }

    /// `core-complex` takes the groups of the largest data cache in turn.
    #[test]
    fn core_complex() {
        assert_eq!(
            bound(NumaBinding::CoreComplex, &[0, 0, 0]),
            [vec![0, 1, 16, 17], vec![2, 3, 18, 19], vec![0, 1, 16, 17]]
        );
    }

    /// Only processors that this process may use count; a worker without any is an error.
    #[test]
    fn affinity_is_respected() {
        let mut host = FakeHost { cpus: 6, ..machine() };
        let gpus = gpus(&mut host, &[1, 2]);
        let one = bind(NumaBinding::Node, 1, &gpus, &host).unwrap();
        assert_eq!(one, [CpuSet::from([4, 5])]);
        assert_eq!(bind(NumaBinding::Node, 2, &gpus, &host), Err(NumaError::NoProcessor(2)));
        assert_eq!(
            bind(NumaBinding::Node, 3, &gpus, &host),
            Err(NumaError::NoAccelerator { local_rank: 2, accelerators: 2 })
        );
    }
}
