//! Checks names, labels and amounts by the rules of Kubernetes.
//!
//! Its API server checks them too, but only after you submit the manifest, and one mistake at a time.

/// A rule for a value.
pub(super) struct Rule {
    /// A description of valid values.
    pub(super) expected: &'static str,
    /// Returns true if the value is valid.
    pub(super) holds: fn(&str) -> bool,
}

/// The maximum length of a label in a host name.
pub(super) const MAX_LABEL: usize = 63;

pub(super) const IMAGE: Rule = Rule {
    expected: "a valid name of an image",
    holds: |text| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic()),
};
pub(super) const NAMESPACE: Rule = Rule {
    expected: "a namespace: at most 63 lowercase letters, digits and `-`, not beginning or \
               ending with `-`",
    holds: |text| text.len() <= MAX_LABEL && is_dns(text),
};
pub(super) const SECRET: Rule = Rule {
    expected: "a name of a secret: lowercase letters, digits, `-` and `.`",
    holds: |text| text.len() <= 253 && text.split('.').all(is_dns),
};
pub(super) const RESOURCE: Rule = Rule {
    expected: "a resource, such as `cpu`, `memory` or `nvidia.com/gpu`",
    // A resource without a domain belongs to Kubernetes itself.
    holds: |text| {
        let own = ["cpu", "memory", "ephemeral-storage"].contains(&text);
        own || (is_qualified(text) && (text.contains('/') || text.starts_with("hugepages-")))
    },
};
pub(super) const LABEL: Rule =
    Rule { expected: "a label, such as `nvidia.com/gpu.product`", holds: is_qualified };
pub(super) const LABEL_VALUE: Rule = Rule {
    expected: "a label's value: at most 63 letters, digits, `-`, `_` and `.`, with a letter or \
               digit at both ends",
    holds: |text| text.is_empty() || is_name(text),
};
pub(super) const QUANTITY: Rule =
    Rule { expected: "an amount, such as `8`, `0.5` or `64Gi`", holds: is_quantity };
pub(super) const WHOLE: Rule = Rule {
    expected: "a whole number, as required for devices",
    holds: |text| text.parse::<u32>().is_ok(),
};
pub(super) const VARIABLE: Rule = Rule {
    expected: "a variable's name: letters, digits, `-`, `_` and `.`, not beginning with a digit",
    holds: |text| {
        !text.is_empty()
            && !text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    },
};
pub(super) const ANYTHING: Rule = Rule { expected: "", holds: |_| true };

/// Returns true if jobs, services and hosts can have this name.
pub(super) fn is_service(text: &str) -> bool {
    is_dns(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Returns true if the text has only small letters, digits and `-`, without `-` at an end.
fn is_dns(text: &str) -> bool {
    let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(sound) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns true if the text is a name, optionally after a domain and `/`.
fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => (SECRET.holds)(domain) && is_name(name),
        None => is_name(text),
    }
}

fn is_name(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Returns true if the text is a nonnegative number, optionally with a decimal or binary suffix or
/// an exponent.
fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 15] =
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let is_number =
        number.contains(|c: char| c.is_ascii_digit()) && number.matches('.').count() <= 1;
    let exponent = suffix.strip_prefix(['e', 'E']);
    let is_exponent = exponent.is_some_and(|exponent| exponent.parse::<i8>().is_ok());
    is_number && (SUFFIXES.contains(&suffix) || suffix == "Ei" || is_exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(rule: &Rule, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!((rule.holds)(text), "{text}");
        }
        for text in bad {
            assert!(!(rule.holds)(text), "{text}");
        }
    }

    /// Each rule accepts what Kubernetes accepts, and nothing else.
    #[test]
    fn rules() {
        let long = "x".repeat(64);
        holds(&NAMESPACE, &["a", "ml-1", "1st"], &["", "-a", "a-", "A", "a.b", "a_b", &long]);
        holds(&SECRET, &["regcred", "a.b-c"], &["", "a..b", ".a", "A"]);
        holds(
            &RESOURCE,
            &["cpu", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "hugepages-2Mi"],
            &["", "/gpu", "nvidia.com/", "NVIDIA.com/gpu", "a/b/c", "gpu", "a/-gpu"],
        );
        holds(&LABEL_VALUE, &["", "H100", "NVIDIA-H100-80GB"], &["a b", "-a", "a.", &long]);
        holds(
            &QUANTITY,
            &["8", "0.5", "500m", "64Gi", "1e3", "2E", "3Ei", "1.", ".5", "100k"],
            &["", "-1", "64GB", "Gi", "1.2.3", "1 Gi", ".", "8x", "1e", "64gi"],
        );
        holds(&WHOLE, &["0", "8000"], &["0.5", "1Gi", "-1", ""]);
        holds(&VARIABLE, &["A", "PET_TEE", "_x", "a.b"], &["", "1A", "A B", "A="]);
        holds(&IMAGE, &["torch", "registry:5000/a/b@sha256:0"], &["", "a b", "a\nb"]);
        assert!(is_service("train-7") && is_service("a"));
        assert!(!is_service("7-train") && !is_service("Train") && !is_service(""));
    }
}
