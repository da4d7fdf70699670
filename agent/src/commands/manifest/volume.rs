//! Reads the volumes that all pods share.

use ragent_options::spec::{Argument, UsageError};

use super::{flag_values::twice, names};

/// A volume that all pods share, and the path at which it is mounted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SharedVolume {
    /// The source of the volume.
    pub source: VolumeSource,
    /// The folder at which pods mount it.
    pub mount_path: String,
}

/// The source of a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum VolumeSource {
    /// A claim, by its name.
    Claim(String),
    /// A folder that exists on all machines, for example on a network file system.
    HostFolder(String),
}

const FLAG: &str = "--volume";
const EXPECTED: &str = "`pvc:CLAIM:/PATH` or `host:/FOLDER:/PATH`";
/// Paths of the image itself, or of the manifest's own volumes.
const TAKEN: [&str; 4] =
    ["/", "/dev/shm", super::container::CONFIG_FOLDER, super::access::SECRET_FOLDER];

impl SharedVolume {
    pub(super) fn parse(text: &str) -> Result<Self, UsageError> {
        let given = Argument::new(FLAG, text);
        let wrong = || given.is_not(EXPECTED);
        let mut parts = text.split(':');
        let (Some(kind), Some(source), Some(path), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let source = match kind {
            "pvc" if (names::SECRET.holds)(source) => VolumeSource::Claim(source.to_owned()),
            "host" if is_folder(source) => VolumeSource::HostFolder(source.to_owned()),
            _ => return Err(wrong()),
        };
        if !is_folder(path) {
            return Err(wrong());
        }
        if TAKEN.contains(&path) {
            return Err(given
                .invalid(format_args!("uses the path `{path}`, which pods need for other files"))
                .with_hint("mount the volume at another folder, such as `/data`"));
        }
        Ok(Self { source, mount_path: path.to_owned() })
    }

    /// Parses all volumes. Their paths must differ.
    pub(super) fn parse_all(texts: &[String]) -> Result<Vec<Self>, UsageError> {
        let volumes = texts.iter().map(|text| Self::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let is_first = |(at, volume): (usize, &Self)| {
            volumes[..at].iter().all(|other| other.mount_path != volume.mount_path)
        };
        match volumes.iter().enumerate().find(|&(at, volume)| !is_first((at, volume))) {
            Some((_, volume)) => Err(twice(FLAG, &volume.mount_path)),
            None => Ok(volumes),
        }
    }
}

/// Returns true for an absolute path in its only spelling: without `..`, which Kubernetes refuses, and without a slash at the end.
fn is_folder(path: &str) -> bool {
    path.starts_with('/')
        && path.split('/').all(|part| part != "..")
        && (path == "/" || !path.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume has a kind, a source and a path of its own.
    #[test]
    fn volumes() {
        let volume = SharedVolume::parse("pvc:data:/mnt/data").unwrap();
        assert_eq!(volume.source, VolumeSource::Claim("data".into()));
        assert_eq!(volume.mount_path, "/mnt/data");
        let volume = SharedVolume::parse("host:/nfs/x:/x").unwrap();
        assert_eq!(volume.source, VolumeSource::HostFolder("/nfs/x".into()));
        for wrong in [
            "",
            "data",
            "pvc:data",
            "pvc:data:mnt",
            "pvc::/mnt",
            "pvc:Data:/mnt",
            "nfs:a:/b",
            "host:nfs:/x",
            "host:/a/../b:/x",
            "pvc:a:/b:ro",
            "pvc:a:/b/",
        ] {
            let error = format!("`--volume {wrong}` is not {EXPECTED}");
            assert_eq!(SharedVolume::parse(wrong).unwrap_err().to_string(), error);
        }
        let twice = ["pvc:a:/x", "pvc:b:/y", "pvc:c:/x"].map(str::to_owned);
        let error = SharedVolume::parse_all(&twice).unwrap_err();
        assert_eq!(error.to_string(), "`--volume` gives `/x` twice");
    }
}
