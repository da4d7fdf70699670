//! Environments that launchers set, and the placements found in them.

use super::*;
use ragent_base::sys::host::FakeHost;

fn machine(env: &[(&str, &str)]) -> FakeHost {
    let mut host = FakeHost::default();
    host.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
    host
}

fn find(env: &[(&str, &str)]) -> Result<Option<Placement>, PlacementError> {
    Placement::find(&machine(env))
}

/// The second task of `srun -N 3 --ntasks-per-node=1` in a job that was requeued once.
const TASK: [(&str, &str); 11] = [
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_NUM_TASKS", "3"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
    ("SLURM_STEP_NODELIST", "gpu[08-10]"),
    ("SLURMD_NODENAME", "gpu09"),
    ("SLURM_GPUS_ON_NODE", "8"),
];

fn task_with(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let kept = TASK.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    kept.chain(changes.iter().filter(|(_, value)| *value != "-")).copied().collect()
}

/// The variables of a batch shell, a login shell or an ordinary service are not a placement.
#[test]
fn no_launcher_no_place() {
    assert_eq!(find(&[]), Ok(None));
    let batch = [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_NTASKS", "3"),
        ("SLURM_JOB_NODELIST", "gpu[08-10]"),
        ("PBS_NODEFILE", "/var/spool/nodes"),
    ];
    assert_eq!(find(&batch), Ok(None));
    // As in the shell of an interactive allocation, and of a batch script.
    for step in ["4294967290", "4294967291"] {
        assert_eq!(find(&task_with(&[("SLURM_STEP_ID", step)])), Ok(None), "{step}");
    }
}

/// A task of a step finds its placement, the first node, and its granted GPUs.
#[test]
fn slurm_step() {
    let expected = Placement {
        launcher: Launcher::Slurm,
        rank: 1,
        size: 3,
        local_rank: 0,
        local_size: 1,
        node: Some((1, 3)),
        name: Some("slurm-4711.2".into()),
        head: Head::There("gpu08".into()),
        hosts: vec!["gpu08".into(), "gpu09".into(), "gpu10".into()],
        gpus: NonZeroU32::new(8),
    };
    assert_eq!(find(&TASK), Ok(Some(expected.clone())));
    let requeued = Placement { name: Some("slurm-4711.2-1".into()), ..expected.clone() };
    assert_eq!(find(&task_with(&[("SLURM_RESTART_COUNT", "1")])), Ok(Some(requeued)));
    // The variables of the whole job are not used if the step has its own.
    let in_larger = task_with(&[("SLURM_NTASKS", "64"), ("SLURM_NNODES", "8")]);
    assert_eq!(find(&in_larger), Ok(Some(expected)));
}

/// Several tasks on a node have local ranks.
#[test]
fn slurm_tasks_per_node() {
    let changes = [
        ("SLURM_PROCID", "6"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_STEP_NUM_TASKS", "11"),
        ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
    ];
    let placement = find(&task_with(&changes)).unwrap().unwrap();
    assert_eq!((placement.rank, placement.size), (6, 11));
    assert_eq!((placement.local_rank, placement.local_size), (2, 4));
    assert_eq!(placement.node, Some((1, 3)));
}

/// A missing, malformed or contradictory variable is an error that names it.
#[test]
fn slurm_contradictions() {
    for (changes, expected) in [
        (("SLURM_PROCID", "-"), "`SLURM_PROCID` is not set"),
        (("SLURM_PROCID", "one"), "`SLURM_PROCID=one`, which is not a whole number"),
        (("SLURM_PROCID", "3"), "`rank 3` and `3 ranks`"),
        (("SLURM_LOCALID", "1"), "`local rank 1` and `1 ranks on this node`"),
        (("SLURM_STEP_TASKS_PER_NODE", "1"), "`SLURM_NODEID=1` and `SLURM_STEP_TASKS_PER_NODE=1`"),
        (("SLURM_STEP_TASKS_PER_NODE", "1(x"), "brackets are not balanced"),
        (("SLURM_STEP_NODELIST", "gpu[08-"), "brackets are not balanced"),
        (("SLURM_STEP_NODELIST", "-"), "`SLURM_STEP_NODELIST` is not set"),
        (("SLURM_STEP_NODELIST", "gpu[08-09]"), "contradict each other"),
        (("SLURMD_NODENAME", "gpu10"), "contradict each other"),
    ] {
        let error = find(&task_with(&[changes])).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with("Slurm "), "{error}");
    }
}

/// The second of two ranks on the second of two nodes, as set by Open MPI 4.
const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "2847866881"),
    ("OMPI_MCA_orte_hnp_uri", "2847866880.0;tcp://127.0.0.1,10.0.0.7,172.17.0.1:34567"),
];

/// Open MPI's ranks find the machine of `mpirun`, and the node number if ranks fill equal nodes.
#[test]
fn open_mpi() {
    let placement = find(&OPEN_MPI).unwrap().unwrap();
    assert_eq!(placement.launcher, Launcher::OpenMpi);
    assert_eq!((placement.local_rank, placement.local_size), (1, 2));
    assert_eq!(placement.node, Some((1, 2)));
    assert_eq!(placement.name.as_deref(), Some("mpi-2847866881"));
    assert_eq!(placement.head, Head::There("10.0.0.7".into()));
}

/// If a launcher gives no name, the batch system's job id is used.
#[test]
fn batch_job_gives_the_name() {
    let mut env = vec![
        ("MV2_COMM_WORLD_RANK", "1"),
        ("MV2_COMM_WORLD_SIZE", "4"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "0"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    assert_eq!(find(&env).unwrap().unwrap().name, None);
    env.push(("PBS_JOBID", "17.head"));
    assert_eq!(find(&env).unwrap().unwrap().name.as_deref(), Some("mpi-17.head"));
}

/// The ranks of the other launchers are read from their own variables.
#[test]
fn other_launchers() {
    let hydra =
        [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
    let mvapich = [
        ("MV2_COMM_WORLD_RANK", "1"),
        ("MV2_COMM_WORLD_SIZE", "4"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "1"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
    ];
    let pals = [
        ("PALS_RANKID", "1"),
        ("PALS_LOCAL_RANKID", "1"),
        ("PALS_LOCAL_SIZE", "2"),
        ("PALS_APID", "3f2a"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
    ];
    for (env, launcher, name) in [
        (&hydra[..], Launcher::Hydra, None),
        (&mvapich[..], Launcher::Mvapich, None),
        (&pals[..], Launcher::Pals, Some("mpi-3f2a".to_owned())),
    ] {
        let expected = Placement {
            launcher,
            rank: 1,
            size: 4,
            local_rank: 1,
            local_size: 2,
            node: Some((0, 2)),
            name,
            head: Head::Unknown,
            hosts: Vec::new(),
            gpus: None,
        };
        assert_eq!(find(env), Ok(Some(expected)));
    }
}

/// If all ranks run on one machine, the head is this machine.
#[test]
fn one_machine() {
    let env =
        [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(find(&env).unwrap().unwrap().head, Head::Here);
}

/// The ranks of an `mpirun` inside a Slurm step are those of `mpirun`; if `srun` started the ranks
/// and sets the library's variables too, those of Slurm count, as they are more complete.
#[test]
fn the_inner_launcher_counts() {
    let mut nested = TASK.to_vec();
    nested.extend(OPEN_MPI);
    assert_eq!(find(&nested).unwrap().unwrap().launcher, Launcher::OpenMpi);
    // As set by Slurm's plug-in for PMI-2: without local ranks.
    let mut direct = TASK.to_vec();
    direct.extend([("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("PMI_JOBID", "4711.2")]);
    assert_eq!(find(&direct).unwrap().unwrap().launcher, Launcher::Slurm);
    // All ranks find the same, including the rank whose numbers equal those of its daemon.
    let mut first = task_with(&[("SLURM_PROCID", "0"), ("SLURM_NODEID", "0")]);
    first.retain(|(name, _)| *name != "SLURMD_NODENAME");
    first.extend([("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "3")]);
    first.extend([("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
    assert_eq!(find(&first).unwrap().unwrap().launcher, Launcher::OpenMpi);
    let mut hydra = TASK.to_vec();
    hydra.extend([("PMI_RANK", "3"), ("PMI_SIZE", "6")]);
    hydra.extend([("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")]);
    assert_eq!(find(&hydra).unwrap().unwrap().launcher, Launcher::Hydra);
}

/// If ranks are not laid out node by node, there is no node number.
#[test]
fn uneven_nodes_have_no_number() {
    assert_eq!(implied_node(2, 4, 0, 2), Some((1, 2)));
    assert_eq!(implied_node(2, 4, 1, 2), None);
    assert_eq!(implied_node(2, 5, 0, 2), None);
    assert_eq!(implied_node(0, 1, 0, 1), Some((0, 1)));
}
