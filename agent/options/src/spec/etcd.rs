//! Reads the rendezvous through etcd: its members, and how this agent connects to them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use ragent_base::{
    net::{Endpoint, EndpointError},
    sys::host::Host,
};
use ragent_rendezvous::{ids::RunId, settings::NodeRange};

use super::{Argument, RdzvConf, UsageError, arguments::Arguments, rendezvous::Backend};
use crate::{
    cli::{LaunchArgs, ProgramName},
    spec::limits::MAX_ETCD_MEMBERS,
};

/// The etcd cluster where the agents of a job find their coordinator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdSpec {
    /// The members of the cluster, as the user ordered them.
    pub members: Vec<Endpoint>,
    /// The prefix of the job's key.
    pub prefix: String,
    /// The files for TLS; `None` without TLS.
    pub tls: Option<EtcdTls>,
    /// The user of etcd; `None` if it does not authenticate users.
    pub login: Option<EtcdLogin>,
}

/// The files for connections to etcd by TLS.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdTls {
    /// The certificates of the authorities that have signed those of the members.
    pub authorities: PathBuf,
    /// The certificate and the key of this client, if etcd requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdLogin {
    /// The name.
    pub user: String,
    /// The file that contains the password.
    pub password_file: PathBuf,
}

/// The values in `--rdzv-conf` for etcd; the keys of torchrun's two etcd backends.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EtcdConf {
    /// `http` or `https`.
    pub protocol: Option<String>,
    /// The file with the certificates of authorities.
    pub authorities: Option<String>,
    /// The file with the certificate of this client.
    pub certificate: Option<String>,
    /// The file with its key.
    pub key: Option<String>,
    /// The prefix of the job's key.
    pub prefix: Option<String>,
}

/// The port of a member of etcd that is given without one; etcd's own default.
const DEFAULT_ETCD_PORT: u16 = 2379;
/// The prefix of keys without `etcd_prefix`.
const DEFAULT_PREFIX: &str = "/ragent";
/// The variable with the name of the user.
const USER_VARIABLE: &str = "RAGENT_ETCD_USER";
/// The variable with the path of the file that contains the password.
const PASSWORD_VARIABLE: &str = "RAGENT_ETCD_PASSWORD_FILE";
/// The variable that `ragent.main` of the Python module sets: its arguments are torchrun's.
const OF_MAIN: &str = "RAGENT_MAIN";
/// The hint for the endpoints of etcd.
const MEMBERS_HINT: &str =
    "give the addresses of etcd's members, such as `etcd0:2379,etcd1:2379,etcd2:2379`";

impl EtcdConf {
    /// Returns a key that only the etcd backends use, if one is given.
    ///
    /// `protocol` is none of them: ragent ignores it with other backends, as it always has.
    pub(super) fn given_key(&self) -> Option<&'static str> {
        let Self { protocol: _, authorities, certificate, key, prefix } = self;
        let keys =
            [("cacert", authorities), ("cert", certificate), ("key", key), ("etcd_prefix", prefix)];
        keys.into_iter().find(|(_, value)| value.is_some()).map(|(key, _)| key)
    }
}

/// The members, separated by commas.
impl fmt::Display for EtcdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, member) in self.members.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{member}")?;
        }
        Ok(())
    }
}

/// The etcd cluster that `ragent doctor` examines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AskedEtcd {
    /// The cluster.
    pub spec: EtcdSpec,
    /// The job whose record is examined, if it is given.
    pub run_id: Option<RunId>,
}

/// Reads the etcd cluster for a command that examines it: from the flags of the rendezvous, else from their `PET_*`
/// variables. Returns `None` if another backend is given, or none.
///
/// # Errors
///
/// Returns [`UsageError`] if a flag is invalid, or the members are not given.
pub fn asked_etcd(args: &LaunchArgs, host: &impl Host) -> Result<Option<AskedEtcd>, UsageError> {
    let arguments = Arguments { args, host, placement: None };
    let conf = arguments.rdzv_conf()?;
    if arguments.backend()? != Some(Backend::Etcd) {
        return Ok(None);
    }
    let endpoint = arguments.not_empty("rdzv_endpoint", &args.rdzv_endpoint);
    let spec = arguments.etcd_cluster(endpoint.as_ref(), &conf)?;
    let is_named = arguments.argument("rdzv_id", &args.rdzv_id).is_some();
    let run_id = is_named.then(|| arguments.run_id()).transpose()?;
    Ok(Some(AskedEtcd { spec, run_id }))
}

impl<H: Host> Arguments<'_, H> {
    /// Reads the rendezvous through etcd.
    ///
    /// A job of one node needs no name, because one is made for it. torchrun gives all jobs without one the same.
    pub(super) fn etcd(
        &self,
        nodes: NodeRange,
        endpoint: Option<&Argument>,
        conf: &RdzvConf,
    ) -> Result<EtcdSpec, UsageError> {
        let cluster = self.etcd_cluster(endpoint, conf)?;
        let needs_name = nodes.max() > 1
            && self.args.name != ProgramName::Torchrun
            && self.variable(OF_MAIN).is_none();
        if needs_name && self.argument("rdzv_id", &self.args.rdzv_id).is_none() {
            let problem = "etcd backends find agents by `--rdzv-id`, which is not given";
            return Err(UsageError::new(problem).with_hint(
                "give the same `--rdzv-id NAME` on all nodes, and a different one for each job",
            ));
        }
        Ok(cluster)
    }

    fn etcd_cluster(
        &self,
        endpoint: Option<&Argument>,
        conf: &RdzvConf,
    ) -> Result<EtcdSpec, UsageError> {
        let Some(given) = endpoint else {
            let problem = "the etcd backends require `--rdzv-endpoint`, which is not given";
            return Err(UsageError::new(problem).with_hint(MEMBERS_HINT));
        };
        if given.search_port().is_some() {
            let problem = "searches for other agents, which etcd backends find through etcd";
            return Err(given.invalid(problem).with_hint(MEMBERS_HINT));
        }
        if conf.is_host.is_some() {
            let problem = "`is_host` in `--rdzv-conf` has no meaning with etcd backends: the agents choose \
                           the host through etcd";
            return Err(UsageError::new(problem).with_hint("omit `is_host`"));
        }
        Ok(EtcdSpec {
            members: members(given)?,
            prefix: prefix(&conf.etcd)?,
            tls: self.etcd_tls(&conf.etcd)?,
            login: self.etcd_login()?,
        })
    }

    fn etcd_tls(&self, conf: &EtcdConf) -> Result<Option<EtcdTls>, UsageError> {
        let EtcdConf { protocol, authorities, certificate, key, prefix: _ } = conf;
        match protocol.as_deref().map(str::to_ascii_lowercase).as_deref() {
            Some("https") => {}
            Some("http") | None => {
                let files = EtcdConf { prefix: None, ..conf.clone() };
                return match files.given_key() {
                    None => Ok(None),
                    Some(key) => Err(UsageError::new(format!(
                        "`--rdzv-conf` has `{key}`, which is used only with `protocol=https`"
                    ))
                    .with_hint("add `protocol=https`, or omit the files")),
                };
            }
            Some(other) => {
                let problem =
                    format!("`--rdzv-conf` has `protocol={other}`, which is not http or https");
                return Err(UsageError::new(problem)
                    .with_hint("use `protocol=https` if etcd has certificates, else omit it"));
            }
        }
        let Some(authorities) = authorities else {
            return Err(UsageError::new("`protocol=https` in `--rdzv-conf` requires `cacert`").with_hint(
                "give the file with the certificate of etcd's authority as `cacert=FILE`, such as \
                 `cacert=/etc/ssl/certs/ca-certificates.crt`",
            ));
        };
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                Some((self.readable("cert", certificate)?, self.readable("key", key)?))
            }
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(UsageError::new("`--rdzv-conf` has only one of `cert` and `key`")
                    .with_hint("give both files, or none if etcd does not verify clients"));
            }
        };
        Ok(Some(EtcdTls { authorities: self.readable("cacert", authorities)?, identity }))
    }

    fn etcd_login(&self) -> Result<Option<EtcdLogin>, UsageError> {
        let variable = |name| self.variable(name).filter(|given| !given.text.is_empty());
        match (variable(USER_VARIABLE), variable(PASSWORD_VARIABLE)) {
            (None, None) => Ok(None),
            (Some(user), Some(file)) => {
                let password_file = PathBuf::from(&file.text);
                if !self.host.is_readable_file(&password_file) {
                    return Err(file.invalid("cannot be read").with_hint(READABLE_HINT));
                }
                Ok(Some(EtcdLogin { user: user.text, password_file }))
            }
            (Some(_), None) | (None, Some(_)) => Err(UsageError::new(format!(
                "only one of {USER_VARIABLE} and {PASSWORD_VARIABLE} is set"
            ))
            .with_hint("set both, or none if etcd does not authenticate users")),
        }
    }

    fn readable(&self, key: &str, path: &str) -> Result<PathBuf, UsageError> {
        if self.host.is_readable_file(Path::new(path)) {
            return Ok(path.into());
        }
        let problem = format!("`--rdzv-conf` has `{key}={path}`, which cannot be read");
        Err(UsageError::new(problem).with_hint(READABLE_HINT))
    }
}

/// The hint for a file that cannot be read.
const READABLE_HINT: &str =
    "give the path of a file that exists on this node and that this user may read";

fn members(given: &Argument) -> Result<Vec<Endpoint>, UsageError> {
    let mut members: Vec<Endpoint> = Vec::new();
    for entry in given.text.split(',') {
        let (host, port) = Endpoint::split(entry.trim()).map_err(|error| {
            let hint = match error {
                EndpointError::Url => {
                    "give addresses without a scheme; `--rdzv-conf protocol=https` selects TLS"
                }
                _ => MEMBERS_HINT,
            };
            let problem = format_args!("is not a valid list of etcd's members: `{entry}`: {error}");
            given.invalid(problem).with_hint(hint)
        })?;
        let member = Endpoint { host, port: port.unwrap_or(DEFAULT_ETCD_PORT) };
        if member.port == 0 || members.contains(&member) {
            let what = if member.port == 0 { "has port 0" } else { "is listed twice" };
            let problem = format_args!("is not a valid list of etcd's members: `{member}` {what}");
            return Err(given.invalid(problem).with_hint(MEMBERS_HINT));
        }
        members.push(member);
    }
    if members.len() > MAX_ETCD_MEMBERS {
        let problem = format_args!("lists more than {MAX_ETCD_MEMBERS} members of etcd");
        return Err(given.invalid(problem).with_hint("list those that this machine reaches best"));
    }
    Ok(members)
}

fn prefix(conf: &EtcdConf) -> Result<String, UsageError> {
    let given = conf.prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
    let prefix = given.trim_end_matches('/');
    if prefix.is_empty() || prefix.len() > MAX_PREFIX || prefix.chars().any(char::is_control) {
        let problem = format!(
            "`--rdzv-conf` has `etcd_prefix={given}`, which is not a valid prefix of a key"
        );
        return Err(
            UsageError::new(problem).with_hint("give a path, such as `etcd_prefix=/training`")
        );
    }
    Ok(prefix.to_owned())
}

/// The length of a prefix in bytes.
const MAX_PREFIX: usize = 256;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use ragent_base::sys::host::FakeHost;

    use crate::{
        cli::Cli,
        spec::{JobSpec, RendezvousMethod},
    };

    /// A machine with a script, certificates and a password.
    fn machine(env: &[(&str, &str)]) -> FakeHost {
        let files = ["t.py", "ca.pem", "c.pem", "k.pem", "password"];
        let mut host = FakeHost {
            cpus: 1,
            programs: vec!["/usr/bin/python3".into()],
            files: files.map(PathBuf::from).to_vec(),
            ..FakeHost::default()
        };
        host.env.insert("PATH".into(), "/usr/bin".into());
        host.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
        host
    }

    fn resolve(env: &[(&str, &str)], flags: &str) -> Result<JobSpec, Vec<UsageError>> {
        let line = format!("ragent --nnodes 2 {flags} t.py");
        let cli = Cli::read(line.split_whitespace().map(OsString::from)).unwrap();
        JobSpec::resolve(cli.launch, &machine(env))
    }

    fn etcd(env: &[(&str, &str)], flags: &str) -> EtcdSpec {
        let spec = resolve(env, &format!("--rdzv-id j {flags}")).unwrap();
        let RendezvousMethod::Etcd(etcd) = spec.rendezvous else { panic!("it uses etcd") };
        etcd
    }

    /// The members have etcd's port by default. Both names of the backend mean the same.
    #[test]
    fn members_are_listed() {
        for (list, expected) in [
            ("e", "e:2379"),
            ("e1:1,e2, [::1]:3", "e1:1,e2:2379,[::1]:3"),
            ("10.0.0.1,10.0.0.2", "10.0.0.1:2379,10.0.0.2:2379"),
        ] {
            for backend in ["etcd", "etcd-v2"] {
                let list = list.replace(' ', "");
                let flags = format!("--rdzv-backend {backend} --rdzv-endpoint {list}");
                let spec = etcd(&[], &flags);
                assert_eq!(spec.to_string(), expected);
                let plain = EtcdSpec {
                    prefix: "/ragent".to_owned(),
                    tls: None,
                    login: None,
                    ..spec.clone()
                };
                assert_eq!(spec, plain);
            }
        }
    }

    /// The keys of both of torchrun's etcd backends are read, and the user from the environment.
    #[test]
    fn files_and_user_are_read() {
        let env = [("RAGENT_ETCD_USER", "me"), ("RAGENT_ETCD_PASSWORD_FILE", "password")];
        let login = EtcdLogin { user: "me".to_owned(), password_file: "password".into() };
        for conf in [
            "protocol=https,cacert=ca.pem,cert=c.pem,key=k.pem",
            "protocol=HTTPS,ca_cert=ca.pem,ssl_cert=c.pem,ssl_cert_key=k.pem",
        ] {
            let flags = "--rdzv-backend etcd --rdzv-endpoint e --rdzv-conf";
            let spec = etcd(&env, &format!("{flags} {conf},etcd_prefix=/a/b/,read_timeout=3"));
            let identity = Some(("c.pem".into(), "k.pem".into()));
            let tls = EtcdTls { authorities: "ca.pem".into(), identity };
            assert_eq!((spec.tls, spec.login), (Some(tls), Some(login.clone())));
            assert_eq!(spec.prefix, "/a/b");
        }
    }

    /// torchrun's `timeout` is the time that nodes wait for each other, unless `join_timeout` is given.
    #[test]
    fn timeout_is_the_join_timeout() {
        for (conf, seconds) in
            [("timeout=20", 20), ("timeout=20,join_timeout=30", 30), ("node_unit=1", 600)]
        {
            let flags =
                format!("--rdzv-id j --rdzv-backend etcd --rdzv-endpoint e --rdzv-conf {conf}");
            assert_eq!(resolve(&[], &flags).unwrap().shared.timeouts.join.as_secs(), seconds);
        }
    }

    /// Each mistake has an error of its own, with a hint.
    #[test]
    fn mistakes() {
        let base = "--rdzv-backend etcd --rdzv-id j --rdzv-endpoint";
        for (flags, expected) in [
            ("--rdzv-backend etcd --rdzv-id j".to_owned(), "require `--rdzv-endpoint`"),
            ("--rdzv-backend etcd --rdzv-endpoint e".to_owned(), "by `--rdzv-id`"),
            (format!("{base} auto"), "searches for other agents"),
            (format!("{base} e,,f"), "is not a valid list of etcd's members: ``"),
            (format!("{base} e:0"), "`e:0` has port 0"),
            (format!("{base} e,e:2379"), "`e:2379` is listed twice"),
            (format!("{base} http://e:2379"), "is not a valid list"),
            (format!("{base} a,b,c,d,e,f,g,h,i,j"), "more than 9 members"),
            (format!("{base} e --rdzv-conf is_host=1"), "`is_host`"),
            (
                format!("{base} e --rdzv-conf protocol=ftp"),
                "`protocol=ftp`, which is not http or https",
            ),
            (format!("{base} e --rdzv-conf protocol=https"), "requires `cacert`"),
            (format!("{base} e --rdzv-conf cacert=ca.pem"), "only with `protocol=https`"),
            (
                format!("{base} e --rdzv-conf protocol=https,cacert=x"),
                "`cacert=x`, which cannot be read",
            ),
            (
                format!("{base} e --rdzv-conf protocol=https,cacert=ca.pem,key=k.pem"),
                "only one of `cert` and `key`",
            ),
            (
                format!("{base} e --rdzv-conf protocol=https,cacert=ca.pem,key=k.pem,cert=x"),
                "`cert=x`",
            ),
            (format!("{base} e --rdzv-conf etcd_prefix=/"), "not a valid prefix"),
            (format!("{base} e --rdzv-conf etcd_prefx=/a"), "unknown key `etcd_prefx`"),
            (
                "--rdzv-id j --rdzv-endpoint e --rdzv-conf cacert=ca.pem".to_owned(),
                "only the etcd backends use",
            ),
        ] {
            let errors = resolve(&[], &flags).unwrap_err();
            assert!(errors[0].to_string().contains(expected), "{flags}: {}", errors[0]);
            assert!(errors[0].hint().is_some(), "{flags}");
        }
        for (env, expected) in [
            (vec![("RAGENT_ETCD_USER", "me")], "only one of"),
            (vec![("RAGENT_ETCD_PASSWORD_FILE", "password")], "only one of"),
            (
                vec![("RAGENT_ETCD_USER", "me"), ("RAGENT_ETCD_PASSWORD_FILE", "x")],
                "cannot be read",
            ),
        ] {
            let errors = resolve(&env, &format!("{base} e")).unwrap_err();
            assert!(errors[0].to_string().contains(expected), "{}", errors[0]);
        }
    }

    /// `protocol` has no meaning with other backends, as before.
    #[test]
    fn protocol_is_ignored_elsewhere() {
        assert!(resolve(&[], "--rdzv-id j --rdzv-endpoint e --rdzv-conf protocol=https").is_ok());
    }
}
