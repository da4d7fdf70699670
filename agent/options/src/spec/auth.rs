//! The authentication that the flags of a command ask for.

use super::{Argument, UsageError, arguments::Arguments};
use ragent_base::{
    secret::{
        AuthMode, AuthRequest, CertificateRequest, Credentials, PeerName, make_on_shared_home,
    },
    sys::host::Host,
};

use crate::cli::AuthArgs;

/// Finds the credentials of a command, and reads them.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid, a file cannot be used, or a required secret is missing.
pub fn credentials(args: &AuthArgs, host: &impl Host) -> Result<Credentials, UsageError> {
    find_credentials(&auth_request(args, host)?, host)
}

/// Finds the credentials that are asked for, and reads them.
///
/// # Errors
///
/// As [`credentials`].
pub fn find_credentials(
    request: &AuthRequest,
    host: &impl Host,
) -> Result<Credentials, UsageError> {
    request.find(host).map_err(|error| UsageError::new(error.to_string()).with_hint(error.hint()))
}

/// Makes the secret of a user whose home folder is shared by the nodes, if there are no credentials.
///
/// # Errors
///
/// Returns [`UsageError`] if another node has made a file that cannot be used.
pub fn shared_credentials(found: Credentials, host: &impl Host) -> Result<Credentials, UsageError> {
    make_on_shared_home(host, found)
        .map_err(|error| UsageError::new(error.to_string()).with_hint(error.hint()))
}

/// Returns true if a flag or a variable selects credentials, or none; `PET_AUTH=secret` of a site does not.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid.
pub fn gives_auth(args: &AuthArgs, host: &impl Host) -> Result<bool, UsageError> {
    let AuthRequest { mode, file, certificates } = auth_request(args, host)?;
    let has_files = file.is_some() || certificates.is_some();
    Ok(args.auth.is_some() || has_files || mode == AuthMode::None)
}

/// Returns the credentials that a command asks for, which are not read here.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid, or contradict each other.
pub fn auth_request(args: &AuthArgs, host: &impl Host) -> Result<AuthRequest, UsageError> {
    let variable = |name: &str| {
        let text = host.env(name)?;
        Some(Argument::new(name, &text.to_string_lossy()))
    };
    let secret = Argument::of_flag("--secret-file", &args.secret_file);
    let tls = [
        ("--tls-ca", &args.tls_ca, "PET_TLS_CA"),
        ("--tls-cert", &args.tls_cert, "PET_TLS_CERT"),
        ("--tls-key", &args.tls_key, "PET_TLS_KEY"),
        ("--tls-peer", &args.tls_peer, "PET_TLS_PEER"),
    ];
    let typed_tls = tls.iter().find_map(|(flag, typed, _)| Argument::of_flag(flag, typed));
    // A file that is typed counts before a mode that is not.
    let has_typed_tls = typed_tls.is_some();
    let has_typed = secret.is_some() || has_typed_tls;
    let mode = Argument::of_flag("--auth", &args.auth);
    let mode = mode.or_else(|| variable("PET_AUTH").filter(|_| !has_typed));
    let mode = mode.map(|given| {
        given.choice("`auto`, `secret`, `tls` or `none`", |text| match text {
            "auto" => Some(AuthMode::Auto),
            "secret" => Some(AuthMode::Secret),
            "tls" => Some(AuthMode::Tls),
            "none" => Some(AuthMode::None),
            _ => None,
        })
    });
    let mode = mode.transpose()?.unwrap_or_default();
    // A flag that contradicts the mode is a mistake; a variable may be that of the site, and is ignored.
    let contradiction = match mode {
        AuthMode::Auto => None,
        AuthMode::Secret => typed_tls.map(|typed| (typed, "secret")),
        AuthMode::Tls => secret.clone().map(|typed| (typed, "tls")),
        AuthMode::None => secret.clone().or(typed_tls).map(|typed| (typed, "none")),
    };
    if let Some((typed, mode)) = contradiction {
        return Err(typed.invalid(format_args!("contradicts `--auth {mode}`")));
    }
    let is_given = |given: &Argument| !given.text.is_empty();
    // Files that are typed count before the other kind in variables.
    let only_secret = secret.is_some() && !has_typed_tls;
    let only_tls = has_typed_tls && secret.is_none();
    let secret = secret.or_else(|| variable("PET_SECRET_FILE").filter(|_| !only_tls));
    let secret = secret.filter(is_given);
    let given = tls.map(|(flag, typed, name)| {
        let given = Argument::of_flag(flag, typed);
        given.or_else(|| variable(name).filter(|_| !only_secret)).filter(is_given)
    });
    let has_certificates = given.iter().any(Option::is_some);
    match mode {
        AuthMode::Auto if !has_certificates => {}
        AuthMode::Secret | AuthMode::None => {}
        AuthMode::Auto | AuthMode::Tls => {
            if let Some(secret) = secret.filter(|_| mode == AuthMode::Auto) {
                let error = secret.invalid("and certificates (`--tls-ca`) are both given");
                return Err(error.with_hint("choose with `--auth secret` or `--auth tls`"));
            }
            let certificates = Some(certificates(given)?);
            return Ok(AuthRequest { mode: AuthMode::Tls, file: None, certificates });
        }
    }
    Ok(AuthRequest { mode, file: secret.map(|given| given.text), certificates: None })
}

/// Returns the files of certificates; none may be missing.
fn certificates(given: [Option<Argument>; 4]) -> Result<CertificateRequest, UsageError> {
    let [authorities, certificate, key, peer] = given;
    let peer = peer.map(|peer| {
        let expected = "a DNS name or a URI, as certificates have them";
        peer.choice(expected, PeerName::parse)
    });
    let peer = peer.transpose()?;
    match (authorities, certificate, key) {
        (Some(authorities), Some(certificate), Some(key)) => Ok(CertificateRequest {
            authorities: authorities.text.into(),
            certificate: certificate.text.into(),
            key: key.text.into(),
            peer,
        }),
        (authorities, certificate, key) => {
            let files =
                [("--tls-ca", authorities), ("--tls-cert", certificate), ("--tls-key", key)];
            let missing = files.iter().filter(|(_, given)| given.is_none());
            let missing: Vec<String> = missing.map(|(flag, _)| format!("`{flag}`")).collect();
            let missing = match missing.as_slice() {
                [one] => format!("{one} is"),
                [first, last] => format!("{first} and {last} are"),
                all => format!("{} are", all.join(", ")),
            };
            let message = format!(
                "authentication by certificates needs three files, and {missing} not given"
            );
            Err(UsageError::new(message).with_hint(
                "give the authorities as `--tls-ca FILE`, the certificate of this node as `--tls-cert FILE`, \
                 and its key as `--tls-key FILE`",
            ))
        }
    }
}

impl<H: Host> Arguments<'_, H> {
    /// Returns the credentials that a launch asks for, which are not read here.
    pub(super) fn auth(&self) -> Result<AuthRequest, UsageError> {
        auth_request(&self.args.auth, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragent_base::sys::host::FakeHost;

    fn args(auth: Option<&str>, file: Option<&str>) -> AuthArgs {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        AuthArgs { auth: owned(auth), secret_file: owned(file), ..AuthArgs::default() }
    }

    /// A flag counts before its variable; `--auth none` ignores the variable of the file.
    #[test]
    fn flags_count_before_variables() {
        let mut host = FakeHost::default();
        let request_of = |auth, file, host: &FakeHost| auth_request(&args(auth, file), host);
        assert_eq!(request_of(None, None, &host), Ok(AuthRequest::default()));
        host.env.insert("PET_AUTH".into(), "secret".into());
        host.env.insert("PET_SECRET_FILE".into(), "/v".into());
        let given = |mode, file: &str| {
            let file = Some(file.to_owned());
            AuthRequest { mode, file, certificates: None }
        };
        assert_eq!(request_of(None, None, &host), Ok(given(AuthMode::Secret, "/v")));
        assert_eq!(request_of(Some("auto"), Some("/t"), &host), Ok(given(AuthMode::Auto, "/t")));
        assert_eq!(request_of(Some("none"), None, &host), Ok(given(AuthMode::None, "/v")));
        let open = credentials(&args(Some("none"), None), &host).unwrap();
        assert!(open.is_declined());
        host.env.insert("PET_SECRET_FILE".into(), "".into());
        assert_eq!(request_of(None, None, &host).unwrap().file, None);
    }

    /// A file that is typed counts before `PET_AUTH=none`; `PET_AUTH=secret` and an empty file select no secret.
    #[test]
    fn variables_of_a_site_select_no_secret() {
        let mut host = FakeHost::default();
        let gives = |auth, file, host: &FakeHost| gives_auth(&args(auth, file), host).unwrap();
        for (mode, selects) in [("none", true), ("secret", false), ("auto", false)] {
            host.env.insert("PET_AUTH".into(), mode.into());
            assert_eq!(gives(None, None, &host), selects, "{mode}");
            assert!(gives(Some("secret"), None, &host) && gives(None, Some("/t"), &host));
        }
        host.env.insert("PET_SECRET_FILE".into(), "".into());
        assert!(!gives(None, None, &host));
        host.env.insert("PET_AUTH".into(), "none".into());
        let typed = auth_request(&args(None, Some("/t")), &host);
        assert_eq!(
            typed,
            Ok(AuthRequest { file: Some("/t".to_owned()), ..AuthRequest::default() })
        );
    }

    /// Mistakes name the flag.
    #[test]
    fn mistakes_are_reported() {
        let host = FakeHost::default();
        let error = |auth, file| auth_request(&args(auth, file), &host).unwrap_err().to_string();
        let unknown = error(Some("mtls"), None);
        assert_eq!(unknown, "`--auth mtls` is not `auto`, `secret`, `tls` or `none`");
        for mode in ["none", "tls"] {
            let both = error(Some(mode), Some("/s"));
            assert_eq!(both, format!("`--secret-file /s` contradicts `--auth {mode}`"));
        }
        let missing = credentials(&args(None, Some("/missing/secret")), &host).unwrap_err();
        assert_eq!(missing.to_string(), "the secret file `/missing/secret` does not exist");
    }

    /// The flags for certificates, in the order authorities, certificate, key, peer.
    fn tls_args(auth: Option<&str>, given: [Option<&str>; 4]) -> AuthArgs {
        let [tls_ca, tls_cert, tls_key, tls_peer] = given.map(|text| text.map(str::to_owned));
        AuthArgs { tls_ca, tls_cert, tls_key, tls_peer, ..args(auth, None) }
    }

    const ALL: [Option<&str>; 4] = [Some("/ca"), Some("/cert"), Some("/key"), Some("node")];

    /// Three files ask for certificates without `--auth`; each may be a flag or a variable.
    #[test]
    fn certificates_are_asked_for() {
        let mut host = FakeHost::default();
        let certificates = Some(CertificateRequest {
            authorities: "/ca".into(),
            certificate: "/cert".into(),
            key: "/key".into(),
            peer: PeerName::parse("node"),
        });
        let expected = AuthRequest { mode: AuthMode::Tls, file: None, certificates };
        for auth in [None, Some("auto"), Some("tls")] {
            assert_eq!(auth_request(&tls_args(auth, ALL), &host), Ok(expected.clone()));
        }
        let values = ["/other", "/cert", "/key", "node"];
        for (name, value) in ["CA", "CERT", "KEY", "PEER"].iter().zip(values) {
            host.env.insert(format!("PET_TLS_{name}"), value.into());
        }
        assert_eq!(gives_auth(&AuthArgs::default(), &host), Ok(true));
        let given = tls_args(None, [Some("/ca"), None, None, None]);
        assert_eq!(auth_request(&given, &host), Ok(expected.clone()));
        // Variables of the site, and another choice of the user.
        for (auth, mode) in [("secret", AuthMode::Secret), ("none", AuthMode::None)] {
            let request = auth_request(&args(Some(auth), None), &host).unwrap();
            assert_eq!(request, AuthRequest { mode, ..AuthRequest::default() });
        }
        host.env.insert("PET_SECRET_FILE".into(), "/s".into());
        assert_eq!(auth_request(&tls_args(Some("tls"), ALL), &host), Ok(expected.clone()));
        // Flags count before the other kind in variables.
        assert_eq!(auth_request(&tls_args(None, ALL), &host), Ok(expected));
        let secret = AuthRequest { file: Some("-".to_owned()), ..AuthRequest::default() };
        assert_eq!(auth_request(&args(None, Some("-")), &host), Ok(secret));
    }

    /// There are never both a secret and certificates, and never a part of the files.
    #[test]
    fn mistakes_with_certificates_are_reported() {
        let host = FakeHost::default();
        let error = |args: &AuthArgs| auth_request(args, &host).unwrap_err().to_string();
        for mode in ["secret", "none"] {
            let contradiction = error(&tls_args(Some(mode), ALL));
            assert_eq!(contradiction, format!("`--tls-ca /ca` contradicts `--auth {mode}`"));
        }
        let both = AuthArgs { secret_file: Some("/s".to_owned()), ..tls_args(None, ALL) };
        assert_eq!(error(&both), "`--secret-file /s` and certificates (`--tls-ca`) are both given");
        let missing = |given| error(&tls_args(None, given));
        let needs = "authentication by certificates needs three files, and";
        let [ca, cert, key, peer] = ALL;
        assert_eq!(missing([ca, None, key, peer]), format!("{needs} `--tls-cert` is not given"));
        let two = missing([None, cert, None, None]);
        assert_eq!(two, format!("{needs} `--tls-ca` and `--tls-key` are not given"));
        let all = format!("{needs} `--tls-ca`, `--tls-cert`, `--tls-key` are not given");
        assert_eq!(missing([None, None, None, peer]), all);
        assert_eq!(error(&args(Some("tls"), None)), all);
        let address = error(&tls_args(None, [ca, cert, key, Some("10.0.0.1")]));
        assert!(
            address.starts_with("`--tls-peer 10.0.0.1` is not a DNS name or a URI"),
            "{address}"
        );
    }
}
