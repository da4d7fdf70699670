//! Contains the table: one line for each case, followed by the intended differences, each with its reason.

use super::case::{Case, case};

/// The reason for exit code 2 after a bad value.
const LEFT_BY_A_SIGNAL: &str = "8, and 1 by the name of torchrun";
const REPORTED_BEFORE_START: &str =
    "invalid arguments are reported before anything starts; torchrun: a traceback";

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    [
        spellings(),
        variables(),
        sizes(),
        rendezvous(),
        fixed_ranks().into_iter().map(Case::with_fixed_master).collect(),
        commands(),
        output(),
        ends(),
        signals(),
        environment(),
        devices(),
        errors(),
        mistakes().into_iter().map(Case::starts_nothing).collect(),
    ]
    .concat()
}

fn spellings() -> Vec<Case> {
    vec![
        case("plain", "worker.py"),
        case("dashes", "--nproc-per-node 2 --max-restarts 1 worker.py"),
        case("underscores", "--nproc_per_node 2 --max_restarts 1 worker.py"),
        case("equals signs", "--nproc-per-node=2 --max_restarts=1 worker.py"),
        case("short flag with a value", "-r 3 --log-dir logs worker.py"),
        case("short flag joined", "-r3 --log-dir logs worker.py"),
        case("short flag with an equals sign", "-r=3 --log-dir logs worker.py"),
        case("short flags bundled", "-mr3 --log-dir logs package.worker"),
        case("abbreviated flag", "--nnod 1 worker.py"),
        case("abbreviated switch", "--stand worker.py"),
        case("abbreviated past the first dash", "--nproc-p 2 --max-r 1 worker.py"),
        case("abbreviated with an equals sign", "--monitor-i=0.05 worker.py"),
        case("abbreviation of a flag without a dash", "--re 3 --log-dir logs worker.py"),
        case("abbreviation across spellings", "--nproc 2 worker.py").starts_nothing().differs("exit code, workers, stdout, stderr", "both spellings of one flag are one flag; argparse takes them for two"),
        case("last one wins", "--nproc-per-node 3 --nproc-per-node 2 worker.py"),
        case("last one wins across spellings", "--nproc-per-node 3 --nproc_per_node 2 worker.py"),
        case("words behind the script", "worker.py a b c"),
        case("flags behind the script", "worker.py --nproc-per-node 3 -r 3 --role x"),
        case("help behind the script", "worker.py --help"),
        case("short help behind the script", "worker.py -h"),
        case("dashes behind the script", "worker.py -- -x --"),
        case("dashes before the script", "-- worker.py -h"),
        case("flags and dashes before the script", "--nproc-per-node 2 -- worker.py --role x"),
        case("empty word", "worker.py --name= x"),
        case("spaces in words", "worker.py a␣b --c=d␣e"),
        case("words of other alphabets", "worker.py größe 日本"),
        case("script with spaces in its name", "space␣in␣name.py x"),
        case("script in a folder", "package/worker.py x"),
        case("script by its full path", "./package/../worker.py x"),
        case("word that is a subcommand", "worker.py store"),
    ]
}

fn variables() -> Vec<Case> {
    vec![
        case("PET_NPROC_PER_NODE", "worker.py").env("PET_NPROC_PER_NODE", "2"),
        case("PET_NNODES", "worker.py").env("PET_NNODES", "1:1"),
        case("PET_MAX_RESTARTS", "worker.py").env("PET_MAX_RESTARTS", "4"),
        case("PET_ROLE", "worker.py").env("PET_ROLE", "trainer"),
        case("PET_LOG_DIR", "-r 3 worker.py").env("PET_LOG_DIR", "logs"),
        case("PET_REDIRECTS", "--log-dir logs worker.py").env("PET_REDIRECTS", "1"),
        case("PET_TEE", "--log-dir logs worker.py").env("PET_TEE", "3"),
        case("PET_MODULE", "package.worker").env("PET_MODULE", "1"),
        case("PET_MODULE off", "worker.py").env("PET_MODULE", "0"),
        case("PET_NO_PYTHON", "{python} worker.py").env("PET_NO_PYTHON", "1"),
        case("PET_RUN_PATH", "worker.py x").env("PET_RUN_PATH", "1").differs("unbuffered", RUN_PATH_BUFFER).differs("is_session_leader, is_group_leader", RUN_PATH_SESSION).differs("descriptors", RUN_PATH_DESCRIPTORS),
        case("PET_STANDALONE", "worker.py").env("PET_STANDALONE", "1"),
        case("PET_STANDALONE as a larger number", "worker.py").env("PET_STANDALONE", "7"),
        case("PET_STANDALONE off", "worker.py").env("PET_STANDALONE", "0"),
        case("PET_STANDALONE as a word", "worker.py").env("PET_STANDALONE", "true").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("PET_RDZV_ID", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} worker.py").env("PET_RDZV_ID", "job7"),
        case("PET_RDZV_BACKEND", "--rdzv-endpoint 127.0.0.1:{port} --rdzv-id j worker.py").env("PET_RDZV_BACKEND", "c10d"),
        case("PET_RDZV_ENDPOINT", "--rdzv-backend c10d --rdzv-id j worker.py").env("PET_RDZV_ENDPOINT", "127.0.0.1:{port}"),
        case("PET_RDZV_CONF", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} worker.py").env("PET_RDZV_CONF", "join_timeout=30,timeout=20"),
        case("PET_MASTER_ADDR and PET_MASTER_PORT", "worker.py").env("PET_MASTER_ADDR", "127.0.0.1").env("PET_MASTER_PORT", "{port}"),
        case("PET_SIGNALS_TO_HANDLE", "worker.py").env("PET_SIGNALS_TO_HANDLE", "SIGTERM"),
        case("PET_SHUTDOWN_TIMEOUT", "worker.py").env("PET_SHUTDOWN_TIMEOUT", "5"),
        case("PET_VIRTUAL_LOCAL_RANK", "--nproc-per-node 2 worker.py").env("PET_VIRTUAL_LOCAL_RANK", "1"),
        case("PET_LOCAL_RANKS_FILTER", "--nproc-per-node 2 worker.py").env("PET_LOCAL_RANKS_FILTER", "1"),
        case("PET_LOG_LINE_PREFIX_TEMPLATE", "-t 3 worker.py").env("PET_LOG_LINE_PREFIX_TEMPLATE", "<${rank}>"),
        case("PET_START_METHOD as anything", "worker.py").env("PET_START_METHOD", "thread"),
        case("PET_MONITOR_INTERVAL", "worker.py").env("PET_MONITOR_INTERVAL", "0.05"),
        case("PET_EVENT_LOG_HANDLER", "worker.py").env("PET_EVENT_LOG_HANDLER", "null"),
        case("flag before variable", "--nproc-per-node 2 worker.py").env("PET_NPROC_PER_NODE", "3"),
        case("PET_NPROC_PER_NODE empty", "worker.py").env("PET_NPROC_PER_NODE", "").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("PET_MAX_RESTARTS as a word", "worker.py").env("PET_MAX_RESTARTS", "many").starts_nothing(),
    ]
}

const RUN_PATH_BUFFER: &str = "output of --run-path is written at once too";
const RUN_PATH_SESSION: &str = "every worker leads a session, so that what it starts ends with it";
const RUN_PATH_DESCRIPTORS: &str = "torchrun's worker inherits pipes of multiprocessing";

fn sizes() -> Vec<Case> {
    vec![
        case("nnodes as a number", "--nnodes 1 worker.py"),
        case("nnodes as a range", "--nnodes 1:1 worker.py"),
        case("nnodes as Python reads numbers", "--nnodes +1:0_1 worker.py"),
        case("workers", "--nproc-per-node 4 worker.py"),
        case("workers as Python reads numbers", "--nproc-per-node 0_2 worker.py"),
        case("workers by processors", "--nproc-per-node cpu worker.py").never_recorded(),
        case("workers by allowed processors", "--nproc-per-node cpu worker.py").on_one_cpu(),
        case("workers by what there is", "--nproc-per-node auto worker.py").never_recorded(),
        case("workers by GPUs on a machine without them", "--nproc-per-node gpu worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("workers by Intel GPUs on a machine without them", "--nproc-per-node xpu worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
    ]
}

fn rendezvous() -> Vec<Case> {
    vec![
        case("standalone", "--standalone --nproc-per-node 2 worker.py"),
        case("standalone overrides", "--standalone --rdzv-backend c10d --rdzv-endpoint nowhere:1 --rdzv-id x worker.py"),
        case("run id is left out without an endpoint", "--rdzv-id job7 worker.py"),
        case("c10d", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id job7 worker.py"),
        case("c10d on a free port", "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id job7 worker.py"),
        case("c10d at a name", "--rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id job7 worker.py"),
        case("c10d over IPv6", "--rdzv-backend c10d --rdzv-endpoint [::1]:{port} --rdzv-id job7 worker.py"),
        case("c10d with every setting", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id j --rdzv-conf store_type=tcp,read_timeout=60,is_host=1,join_timeout=60,last_call_timeout=5,close_timeout=5,heartbeat_timeout=5,keep_alive_interval=5,keep_alive_max_attempt=3,cas_backoff_max_seconds=0.5 worker.py"),
        case("settings with spaces", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id j --rdzv-conf join_timeout=60,␣last_call_timeout␣=␣5 worker.py"),
        case("two nodes by c10d", TWO_C10D).node(TWO_C10D).env("SORTED", "1"),
        case("static without a port is standalone", "--rdzv-backend static worker.py"),
        case("node rank of the only node", "--nnodes 1 --node-rank 0 worker.py"),
        case("setting that is not there", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id j --rdzv-conf jointimeout=5 worker.py").differs("exit code, workers, stdout, stderr", "a misspelt setting would be left out"),
        case("role", "--role trainer --nproc-per-node 2 worker.py"),
        case("role with odd letters", "--role a␣b/c worker.py"),
        case("local address", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id j --local-addr 127.0.0.1 worker.py"),
    ]
}

const TWO_C10D: &str = "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id job7 worker.py";

fn fixed_ranks() -> Vec<Case> {
    vec![
        case("master port", "--master-port {port} worker.py"),
        case("master address and port", "--master_addr 127.0.0.1 --master_port={port} --nproc-per-node 2 worker.py"),
        case("master by name", "--master-addr localhost --master-port {port} worker.py"),
        case("master over IPv6", "--master-addr [::1] --master-port {port} worker.py"),
        case("static with an endpoint", "--rdzv-backend static --rdzv-endpoint 127.0.0.1:{port} --rdzv-id x worker.py"),
        case("two nodes with fixed ranks", "--nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 127.0.0.1 --master-port {port} worker.py").node("--nnodes 2 --nproc-per-node 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {port} worker.py"),
        case("nodes with fixed ranks, last one first", "--nnodes 2 --node-rank 1 --master-addr localhost --master-port {port} worker.py").node("--nnodes 2 --node-rank 0 --master-addr localhost --master-port {port} worker.py"),
        case("fixed ranks of a range of nodes", "--nnodes 1:2 --node-rank 0 --master-port {port} worker.py").node("--nnodes 1:2 --node-rank 1 --master-port {port} worker.py"),
        case("nodes of different sizes", "--nnodes 2 --nproc-per-node 1 --node-rank 0 --master-port {port} worker.py").node("--nnodes 2 --nproc-per-node 3 --node-rank 1 --master-port {port} worker.py"),
        case("nodes of different roles", "--nnodes 2 --role a --node-rank 0 --master-port {port} worker.py").node("--nnodes 2 --role b --nproc-per-node 2 --node-rank 1 --master-port {port} worker.py"),
        case("static with a timeout", "--rdzv-backend static --rdzv-endpoint 127.0.0.1:{port} --rdzv-conf timeout=60 worker.py"),
        case("endpoint of static without a port", "--rdzv-backend static --rdzv-endpoint 127.0.0.1 worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
    ]
}

fn commands() -> Vec<Case> {
    vec![
        case("module", "-m package.worker x"),
        case("module by its long name", "--module package.worker x"),
        case("program", "--no-python {python} worker.py x"),
        case("program in the path", "--no-python env {python} worker.py"),
        case("program by a relative path", "--no-python ./package/../run x").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("run path", "--run-path worker.py x --nproc-per-node").differs("unbuffered", RUN_PATH_BUFFER).differs("is_session_leader, is_group_leader", RUN_PATH_SESSION).differs("descriptors", RUN_PATH_DESCRIPTORS),
        case("run path by fork", "--run-path --start-method fork worker.py x").differs("is_session_leader, is_group_leader", RUN_PATH_SESSION).differs("descriptors", RUN_PATH_DESCRIPTORS),
        case("start method", "--start-method forkserver worker.py"),
        case("interpreter by PYTHON_EXEC", "worker.py").env("PYTHON_EXEC", "{python}"),
        case("interpreter by name", "worker.py").env("PYTHON_EXEC", "python3"),
        case("macro", "--nproc-per-node 2 worker.py --out=x${local_rank}.txt $local_rank"),
        case("macro and shells", "worker.py $$ $HOME ${HOME} $ $1 a$local_rankb"),
        case("macro in the script's name", "package/${local_rank}.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("stdin is shared", "worker.py").stdin("one\ntwo\n").act("say('read@' + sys.stdin.readline().strip())"),
        case("stdin that is empty", "worker.py").act("say('read@' + repr(sys.stdin.read()))"),
        case("monitor interval", "--monitor-interval 0.03 worker.py"),
    ]
}

fn output() -> Vec<Case> {
    const SPEAK: &str = "say('one@'); say('two@', 2)";
    vec![
        case("console", "--nproc-per-node 2 worker.py").act(SPEAK),
        case("redirects of both", "--nproc-per-node 2 --log-dir logs -r 3 worker.py").act(SPEAK),
        case("redirects of stdout", "--log-dir logs --redirects 1 worker.py").act(SPEAK),
        case("redirects of stderr", "--log-dir logs --redirects 2 worker.py").act(SPEAK),
        case("redirects of none", "--log-dir logs --redirects 0 worker.py").act(SPEAK),
        case("redirects by rank", "--nproc-per-node 3 --log-dir logs -r 0:3,1:1 worker.py").act(SPEAK),
        case("redirects of ranks that are not there", "--nproc-per-node 2 --log-dir logs -r 0:1,7:3 worker.py").act(SPEAK),
        case("tee of both", "--nproc-per-node 2 --log-dir logs -t 3 worker.py").act(SPEAK),
        case("tee by rank", "--nproc-per-node 2 --log-dir logs --tee 1:3 worker.py").act(SPEAK),
        case("tee and redirects", "--nproc-per-node 2 --log-dir logs -r 3 -t 0:1 worker.py").act(SPEAK),
        case("tee without a folder", "-t 3 worker.py").act(SPEAK),
        case("tee with a role", "--role trainer -t 3 worker.py").act(SPEAK),
        case("folder with the run id", "--log-dir logs -r 3 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id job7 worker.py"),
        case("folder that has to be made", "--log-dir logs/a/b -r 3 worker.py"),
        case("no folder", "--log-dir /dev/null -r 3 -t 3 worker.py").act(SPEAK),
        case("folder that is a file", "--log-dir input worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("prefix", "--nproc-per-node 2 -t 3 --log-line-prefix-template [${role_name}/${rank}/${local_rank}]␣ worker.py").act(SPEAK),
        case("prefix with a host", "-t 3 --log-line-prefix-template ${hostname}: worker.py").act(SPEAK),
        case("prefix with unknown names", "-t 3 --log-line-prefix-template $nobody${rank}$$ worker.py").act(SPEAK),
        case("prefix that is empty", "-t 3 --log-line-prefix-template= worker.py").act(SPEAK),
        case("prefix by a variable", "-t 3 worker.py").env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}>").act(SPEAK),
        case("prefix by flag before variable", "-t 3 --log-line-prefix-template x worker.py").env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "y"),
        case("shown ranks", "--nproc-per-node 3 --local-ranks-filter 0,2 worker.py").act(SPEAK),
        case("shown ranks with tee", "--nproc-per-node 2 --log-dir logs -t 3 --local-ranks-filter 1 worker.py").act(SPEAK),
        case("shown ranks with redirects", "--nproc-per-node 2 --log-dir logs -r 0:3 --local-ranks-filter 0 worker.py").act(SPEAK),
        case("shown ranks without a folder", "--nproc-per-node 2 --log-dir /dev/null --local-ranks-filter 1 worker.py").act(SPEAK),
        case("copied lines of stdout", "--nproc-per-node 2 --log-dir logs -t 3 --duplicate-stdout-filters one,three worker.py").act(SPEAK),
        case("copied lines of stderr", "--log-dir logs -t 3 --duplicate_stderr_filters two worker.py").act(SPEAK),
        case("copied lines with a comma", "--log-dir logs -t 1 --duplicate-stdout-filters a,,b worker.py").act("say('a@,b'); say('a,b@'); say('a@b')"),
        case("copied lines without tee", "--log-dir logs -r 3 --duplicate-stdout-filters one worker.py").act(SPEAK),
        case("copied lines without a folder", "--log-dir /dev/null --duplicate-stdout-filters one worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("line without an end", "-t 1 --log-dir logs worker.py").act("os.write(1, b'half@')"),
        case("events", "--event-log-handler null worker.py"),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        case("exit code 3", "worker.py").act("sys.exit(3)"),
        case("exit code 255", "worker.py").act("sys.exit(255)"),
        case("exit code 0 by sys.exit", "worker.py").act("sys.exit(0)"),
        case("exception", "worker.py").act("raise ValueError('x')"),
        case("killed by SIGKILL", "worker.py").act("die('SIGKILL')"),
        case("killed by SIGTERM", "worker.py").act("die('SIGTERM')"),
        case("killed by SIGABRT", "worker.py").act("die('SIGABRT')"),
        case("one of three fails", "--nproc-per-node 3 worker.py").act("meet(); sys.exit(7) if rank == 0 else wait()"),
        case("one succeeds, one fails", "--nproc-per-node 2 worker.py").act("meet(); sys.exit(7 if rank == 0 else 0)"),
        case("restart until success", "--nproc-per-node 2 --max-restarts 2 --log-dir logs -r 3 worker.py").act("meet(); sys.exit(1) if attempt < 2 and rank == 0 else wait() if attempt < 2 else None"),
        case("restarts used up", "--max-restarts 2 --log-dir logs -r 3 worker.py").act("sys.exit(1)"),
        case("restart of all", "--nproc-per-node 2 --max-restarts 1 worker.py").act("meet(); sys.exit(1) if attempt == 0 and rank == 0 else wait() if attempt == 0 else None"),
    ]
}

fn signals() -> Vec<Case> {
    const CATCH: &str = "catch('SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT', 'SIGUSR1'); wait()";
    vec![
        case("SIGTERM", "--nproc-per-node 2 worker.py").act(CATCH).signalled("SIGTERM", 2).differs("exit code", LEFT_BY_A_SIGNAL),
        case("SIGINT", "--nproc-per-node 2 worker.py").act(CATCH).signalled("SIGINT", 2).differs("exit code", LEFT_BY_A_SIGNAL),
        case("SIGHUP", "worker.py").act(CATCH).signalled("SIGHUP", 1).differs("exit code", LEFT_BY_A_SIGNAL),
        case("SIGQUIT", "worker.py").act(CATCH).signalled("SIGQUIT", 1).differs("exit code", LEFT_BY_A_SIGNAL),
        case("SIGTERM and workers that do not catch it", "--nproc-per-node 2 worker.py").act("wait()").signalled("SIGTERM", 2).differs("exit code", LEFT_BY_A_SIGNAL),
        case("SIGTERM and workers that ignore it", "--shutdown-timeout 1 worker.py").act("signal.signal(signal.SIGTERM, signal.SIG_IGN); wait()").signalled("SIGTERM", 1).differs("exit code", LEFT_BY_A_SIGNAL),
        case("no time to shut down", "--shutdown-timeout 0 worker.py").act("signal.signal(signal.SIGTERM, signal.SIG_IGN); wait()").signalled("SIGTERM", 1).differs("exit code", LEFT_BY_A_SIGNAL),
        case("time to shut down by a variable", "worker.py").env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1").act("signal.signal(signal.SIGTERM, signal.SIG_IGN); wait()").signalled("SIGTERM", 1).differs("exit code", LEFT_BY_A_SIGNAL),
        case("a signal of the user's choice", "--signals-to-handle SIGUSR1,SIGTERM worker.py").act(CATCH).signalled("SIGUSR1", 1).differs("exit code", LEFT_BY_A_SIGNAL),
        case("signals that are given", "--signals-to-handle SIGTERM,␣SIGINT worker.py"),
        case("signals that are unknown", "--signals-to-handle SIGTERM,SIGNOPE worker.py").differs("env TORCHINDUCTOR_CACHE_DIR", "a variable that torch sets for itself when it logs an exception"),
        case("signals that cannot be handled", "--signals-to-handle SIGTERM,SIGKILL worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("a signal that is not handled", "--signals-to-handle SIGINT worker.py").act("wait()").signalled("SIGTERM", 1),
        case("ignored hang-up", "worker.py").ignoring("SIGHUP"),
        case("ignored interrupt", "worker.py").ignoring("SIGINT"),
    ]
}

fn environment() -> Vec<Case> {
    vec![
        case("variables pass", "worker.py").env("MINE", "a b=c").env("EMPTY", ""),
        case("threads", "--nproc-per-node 2 worker.py"),
        case("threads by the user", "--nproc-per-node 2 worker.py").env("OMP_NUM_THREADS", "8"),
        case("threads of one worker", "--nproc-per-node 1 worker.py"),
        case("NCCL's errors", "worker.py").env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        case("variables that are set already", "worker.py").env("RANK", "9").env("WORLD_SIZE", "9").env("MASTER_PORT", "1").env("LOCAL_RANK", "9").env("GROUP_RANK", "9"),
        case("store of the worker", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id j worker.py").env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
        case("store of the worker, switched off", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id j worker.py").env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0"),
        case("timer file", "worker.py").env("TORCHELASTIC_TIMER_FILE", "/tmp/x"),
        case("health check port", "worker.py").env("TORCHELASTIC_HEALTH_CHECK_PORT", "{port}"),
        case("signals of the launcher's launcher", "worker.py").env("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGINT"),
        case("log level", "worker.py").env("LOGLEVEL", "INFO"),
    ]
}

fn devices() -> Vec<Case> {
    vec![
        case("visible devices pass", "--nproc-per-node 2 worker.py").env("CUDA_VISIBLE_DEVICES", "3,1"),
        case("virtual local rank", "--nproc-per-node 2 --virtual-local-rank worker.py"),
        case("virtual local rank of visible devices", "--nproc-per-node 2 --virtual_local_rank worker.py").env("CUDA_VISIBLE_DEVICES", "3, 1,0"),
        case("virtual local rank of AMD's devices", "--nproc-per-node 2 --virtual-local-rank worker.py").env("HIP_VISIBLE_DEVICES", "5,4").env("CUDA_VISIBLE_DEVICES", "0"),
        case("virtual local rank of too few devices", "--nproc-per-node 2 --virtual-local-rank worker.py").env("CUDA_VISIBLE_DEVICES", "0").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
        case("binding without a GPU", "--numa-binding node worker.py").starts_nothing().differs("exit code", REPORTED_BEFORE_START),
    ]
}

fn errors() -> Vec<Case> {
    vec![
        case("recorded exception", "--log-dir logs recorded.py"),
        case("recorded exception of one worker", "--nproc-per-node 2 --log-dir logs recorded.py").env("FAILS", "1"),
        case("nothing to record", "--log-dir logs recorded.py").env("FAILS", "9"),
        case("error file of the launcher", "--log-dir logs recorded.py").env("TORCHELASTIC_ERROR_FILE", "logs/mine_12345678/error.json"),
    ]
}

fn mistakes() -> Vec<Case> {
    vec![
        case("nothing to launch", ""),
        case("flags and nothing to launch", "--nproc-per-node 2"),
        case("unknown flag", "--bogus worker.py"),
        case("unknown short flag", "-x worker.py"),
        case("flag without its value", "--nnodes"),
        case("script that is not there", "nothing.py").differs("exit code", REPORTED_BEFORE_START),
        case("module that is not there", "-m nothing"),
        case("program that is not there", "--no-python nothing").differs("exit code", REPORTED_BEFORE_START),
        case("program that cannot be executed", "--no-python ./worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("module without Python", "--no-python -m worker").differs("exit code", REPORTED_BEFORE_START),
        case("no worker", "--nproc-per-node 0 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("negative workers", "--nproc-per-node=-1 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("workers as a fraction", "--nproc-per-node 1.5 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("workers in capitals", "--nproc-per-node CPU worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("nnodes as a word", "--nnodes many worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("nnodes backwards", "--nnodes 2:1 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("no node", "--nnodes 0 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("negative restarts", "--max-restarts -1 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("restarts as a word", "--max-restarts many worker.py"),
        case("interval of zero", "--monitor-interval 0 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("interval as a word", "--monitor-interval often worker.py"),
        case("redirects of a fifth kind", "-r 5 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("redirects as a word", "-r all worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("redirects of rank 10", "--nproc-per-node 11 --log-dir logs -r 10:1 worker.py").differs("exit code, workers, stdout, stderr, files", "ranks may have two digits"),
        case("backend that is not there", "--rdzv-backend foo worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("setting without a value", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-conf join_timeout worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("setting of zero", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-conf join_timeout=0 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("endpoint with a bad port", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:99999 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("endpoint with a bad host", "--rdzv-backend c10d --rdzv-endpoint a!b:1 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("run id with a slash", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id a/b --log-dir logs worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("start method that is not there", "--start-method thread worker.py"),
        case("binding that is not there", "--numa-binding near worker.py"),
        case("events to nowhere", "--event-log-handler foo worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("plug-in for logs", "--logs-specs mine worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("shown ranks as words", "--local-ranks-filter a worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("negative time to shut down", "--shutdown-timeout -1 worker.py").differs("exit code", REPORTED_BEFORE_START),
        case("time to shut down as a word", "--shutdown-timeout soon worker.py"),
        case("unknown shell", "--print-completion powershell"),
        case("help", "--help"),
        case("short help", "-h"),
    ]
}
