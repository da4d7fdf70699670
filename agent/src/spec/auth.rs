//! The authentication that the flags of a command ask for.

use super::{Argument, UsageError, arguments::Arguments};
use crate::{
    cli::AuthArgs,
    secret::{AuthMode, Credentials, SecretRequest},
    sys::host::Host,
};

/// Finds the secret of a command, and reads it.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid, a secret file cannot be used, or a required secret is missing.
pub(crate) fn credentials(args: &AuthArgs, host: &impl Host) -> Result<Credentials, UsageError> {
    find_credentials(&secret_request(args, host)?, host)
}

/// Finds the secret that is asked for, and reads it.
///
/// # Errors
///
/// As [`credentials`].
pub(crate) fn find_credentials(
    request: &SecretRequest,
    host: &impl Host,
) -> Result<Credentials, UsageError> {
    request.find(host).map_err(|error| UsageError::new(error.to_string()).with_hint(error.hint()))
}

/// Returns true if a flag or a variable selects a secret, or none; `PET_AUTH=secret` of a site does not.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid.
pub(crate) fn gives_auth(args: &AuthArgs, host: &impl Host) -> Result<bool, UsageError> {
    let SecretRequest { mode, file } = secret_request(args, host)?;
    Ok(args.auth.is_some() || file.is_some() || mode == AuthMode::None)
}

/// Returns the secret that a command asks for.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid.
pub(crate) fn secret_request(
    args: &AuthArgs,
    host: &impl Host,
) -> Result<SecretRequest, UsageError> {
    let variable = |name: &str| {
        let text = host.env(name)?;
        Some(Argument::new(name, &text.to_string_lossy()))
    };
    let typed = Argument::of_flag("--secret-file", &args.secret_file);
    let mode = Argument::of_flag("--auth", &args.auth);
    // A file that is typed counts before a mode that is not.
    let mode =
        mode.or_else(|| variable("PET_AUTH").filter(|mode| typed.is_none() || mode.text != "none"));
    let mode = mode.map(|given| {
        given.choice("`auto`, `secret` or `none`", |text| match text {
            "auto" => Some(AuthMode::Auto),
            "secret" => Some(AuthMode::Secret),
            "none" => Some(AuthMode::None),
            _ => None,
        })
    });
    let mode = mode.transpose()?.unwrap_or_default();
    if let Some(typed) = typed.as_ref().filter(|_| mode == AuthMode::None) {
        return Err(typed.invalid("contradicts `--auth none`"));
    }
    let file = typed.or_else(|| variable("PET_SECRET_FILE"));
    let file = file.map(|given| given.text).filter(|path| !path.is_empty());
    Ok(SecretRequest { mode, file })
}

impl<H: Host> Arguments<'_, H> {
    /// Returns the secret that a launch asks for, which is not read here.
    pub(super) fn secret(&self) -> Result<SecretRequest, UsageError> {
        secret_request(&self.args.auth, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host::FakeHost;

    fn args(auth: Option<&str>, file: Option<&str>) -> AuthArgs {
        AuthArgs { auth: auth.map(str::to_owned), secret_file: file.map(str::to_owned) }
    }

    /// A flag counts before its variable; `--auth none` ignores the variable of the file.
    #[test]
    fn flags_count_before_variables() {
        let mut host = FakeHost::default();
        let request_of = |auth, file, host: &FakeHost| secret_request(&args(auth, file), host);
        assert_eq!(request_of(None, None, &host), Ok(SecretRequest::default()));
        host.env.insert("PET_AUTH".into(), "secret".into());
        host.env.insert("PET_SECRET_FILE".into(), "/v".into());
        let given = |mode, file: &str| SecretRequest { mode, file: Some(file.to_owned()) };
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
        let typed = secret_request(&args(None, Some("/t")), &host);
        assert_eq!(typed, Ok(SecretRequest { mode: AuthMode::Auto, file: Some("/t".to_owned()) }));
    }

    /// Mistakes name the flag.
    #[test]
    fn mistakes_are_reported() {
        let host = FakeHost::default();
        let error = |auth, file| secret_request(&args(auth, file), &host).unwrap_err().to_string();
        assert_eq!(error(Some("tls"), None), "`--auth tls` is not `auto`, `secret` or `none`");
        let both = error(Some("none"), Some("/s"));
        assert_eq!(both, "`--secret-file /s` contradicts `--auth none`");
        let missing = credentials(&args(None, Some("/missing/secret")), &host).unwrap_err();
        assert_eq!(missing.to_string(), "the secret file `/missing/secret` does not exist");
    }
}
