//! Reads the rendezvous from the variables of the scheduler or MPI launcher that has started this
//! agent, if no flag determines it.

use ragent_base::{net::Endpoint, sys::host::Host};
use ragent_rendezvous::{settings::NodeRange, voter_count::VoterCount};

use super::{
    RdzvConf, RendezvousMethod, UsageError, VoterList, arguments::Arguments, voters::voters_among,
};
use crate::{
    cli::ProgramName,
    scheduler::{Head, Launcher, Placement},
};

/// One of the agents that a launcher has started together, one on each node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LauncherGroup {
    /// The launcher.
    pub launcher: Launcher,
    /// Its number among them; the first one hosts.
    pub node_rank: u32,
    /// The number of agents.
    pub nodes: u32,
}

impl<H: Host> Arguments<'_, H> {
    /// Returns the place that a launcher has given to this agent. Returns `None` if flags determine
    /// the rendezvous: scripts for torchrun have such flags even under a launcher. torchrun itself takes no
    /// values from launchers.
    pub(super) fn placement(&self) -> Result<Option<Placement>, UsageError> {
        if self.args.name == ProgramName::Torchrun || self.has_rendezvous_flag() {
            return Ok(None);
        }
        let found = Placement::find(self.host).map_err(|error| {
            UsageError::new(error.to_string()).with_hint(
                "use `--standalone` for this node alone, or `--rdzv-endpoint` and `--nnodes`, \
                 which replace the launcher's values",
            )
        });
        let Some(placement) = found? else { return Ok(None) };
        let Placement { launcher, local_size, .. } = placement;
        if local_size > 1 {
            return Err(several_agents(launcher, local_size));
        }
        Ok(Some(placement.ask_launcher(self.host)))
    }

    fn has_rendezvous_flag(&self) -> bool {
        let args = self.args;
        let flags = [
            ("rdzv_backend", &args.rdzv_backend),
            ("rdzv_endpoint", &args.rdzv_endpoint),
            ("node_rank", &args.node_rank),
            ("master_addr", &args.master_addr),
            ("master_port", &args.master_port),
        ];
        let is_standalone = self.switch("standalone", args.standalone).unwrap_or(true);
        is_standalone || flags.iter().any(|(name, typed)| self.argument(name, typed).is_some())
    }

    /// Limits `nodes` to the agents that a launcher has started, as no further ones can follow.
    pub(super) fn started(&self, nodes: NodeRange) -> Result<NodeRange, UsageError> {
        let Some(Placement { launcher, size, .. }) = self.placement else { return Ok(nodes) };
        let max = nodes.max().min(size);
        NodeRange::in_units(nodes.min(), max, nodes.unit()).ok_or_else(|| {
            UsageError::new(format!(
                "{launcher} has started {size} agents, but `--nnodes` is {nodes}"
            ))
            .with_hint(
                "lower MIN in `--nnodes`, or give `--rdzv-endpoint`, so that other agents can \
                     join",
            )
        })
    }

    /// Returns the place of this agent among the agents of a launcher, if a launcher started it.
    pub(super) fn launcher_group(&self) -> Option<LauncherGroup> {
        let Placement { launcher, rank, size, .. } = self.placement.as_ref()?;
        Some(LauncherGroup { launcher: *launcher, node_rank: *rank, nodes: *size })
    }

    fn is_named(&self) -> bool {
        self.argument("rdzv_id", &self.args.rdzv_id).is_some()
    }

    /// Returns the launcher's name for this start.
    pub(super) fn launchers_name(&self) -> Option<&str> {
        self.placement.as_ref()?.name.as_deref()
    }

    /// Returns true if the job is named after a step of Slurm, and this process is a task of it: no other step has that name, also if
    /// the job is queued again, and a task is started once. A script that Slurm has started may start agents again and
    /// again. Names of MPI launchers may occur again.
    pub(super) fn is_task_of_step(&self) -> bool {
        let is_step = |placement: &Placement| placement.launcher == Launcher::Slurm;
        let has_steps_name = self.placement.as_ref().is_some_and(is_step) && !self.is_named();
        has_steps_name && self.host.parent_name().as_deref() == Some("slurmstepd")
    }

    /// Returns the rendezvous of the agents of a launcher.
    pub(super) fn launcher_rendezvous(
        &self,
        placement: &Placement,
        nodes: NodeRange,
        conf: &RdzvConf,
    ) -> Result<RendezvousMethod, UsageError> {
        let count = voters_among(conf.asked_voters(), nodes, placement.hosts.len());
        if count.is_several() {
            return launcher_voters(placement, count, conf);
        }
        match &placement.head {
            Head::Here => Ok(RendezvousMethod::Standalone),
            Head::There(host) => {
                let endpoint = Endpoint { host: host.clone(), port: port_of(placement) };
                Ok(RendezvousMethod::Endpoint { endpoint, is_host: None })
            }
            // The first agent hosts, and the others search for it.
            Head::Unknown if placement.name.is_some() || self.is_named() => {
                Ok(RendezvousMethod::Search(self.search(port_of(placement), conf)?))
            }
            Head::Unknown => Err(UsageError::new(format!(
                "{} has started this agent, but does not provide the host of the first agent",
                placement.launcher
            ))
            .with_hint("give it as `--rdzv-endpoint HOST:PORT`, the same on all nodes")),
        }
    }
}

/// Returns the rendezvous with voters on `count` of the hosts that a launcher has listed.
fn launcher_voters(
    placement: &Placement,
    count: VoterCount,
    conf: &RdzvConf,
) -> Result<RendezvousMethod, UsageError> {
    let Placement { launcher, hosts, size, .. } = placement;
    let error = |why: String| UsageError::new(format!("`--rdzv-conf` has `voters={count}`, {why}"));
    if *launcher != Launcher::Slurm {
        let why = format!("but a job under {launcher} has one coordinator");
        let hint = "omit it: MPI launchers end all agents when they lose one host, so that no \
                    other host could take over";
        return Err(error(why).with_hint(hint));
    }
    if conf.is_host.is_some() {
        let why = "whose hosts elect the coordinator, so `is_host` has no meaning".to_owned();
        return Err(error(why).with_hint("omit one of the two"));
    }
    let chosen = count.choose(hosts.len()).into_iter();
    let port = port_of(placement);
    let endpoint = |index: usize| Endpoint { host: hosts[index].clone(), port };
    let endpoints: Vec<Endpoint> = chosen.map(endpoint).collect();
    if endpoints.is_empty() {
        let why = format!("but {launcher} has started only {size} agents, one on each host");
        return Err(error(why).with_hint("omit it, or request more nodes"));
    }
    let list = VoterList::new(endpoints).map_err(|cause| {
        error(format!("but voters cannot be chosen from the list of hosts: {cause}"))
            .with_hint("give the hosts as `--rdzv-endpoint node0,node1,node2`")
    })?;
    Ok(RendezvousMethod::Voters(list))
}

fn several_agents(launcher: Launcher, local_size: u32) -> UsageError {
    let hint = match launcher {
        Launcher::Slurm => {
            "`srun --ntasks-per-node=1 ragent …` starts one agent per node; `srun ragent rank -- \
             …` makes each task one rank"
        }
        Launcher::Hydra | Launcher::Mvapich | Launcher::OpenMpi | Launcher::Pals => {
            "`mpirun -npernode 1 ragent …` (`-ppn 1`) starts one agent per node; `mpirun ragent \
             rank -- …` makes each process one rank"
        }
    };
    UsageError::new(format!(
        "{launcher} has started {local_size} agents on this node, but a node runs only one"
    ))
    .with_hint(hint)
}

/// The first of the [`PORTS`] that are assigned to jobs by name. They are below the
/// ports that systems use for outgoing connections.
const FIRST_PORT: u16 = 20_480;
/// The number of these ports.
const PORTS: u32 = 8192;

/// Returns the port of the rendezvous of processes that were started together: the same for all of them,
/// and a different one for another job on the same machine, unless their names have the same hash
/// (1 of 8192).
pub fn port_of(placement: &Placement) -> u16 {
    let name = placement.name.as_deref().unwrap_or_default();
    // FNV-1a: all versions of ragent must compute the same hash.
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    FIRST_PORT + (hash % PORTS) as u16
}
