//! Mistakes in the arguments. Each has its message and its hint where it is detected; a command
//! collects all of them and reports them at once.

use std::fmt;

/// An error in the arguments of a command: a message, and a hint for the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UsageError {
    message: String,
    hint: Option<String>,
}

impl UsageError {
    /// Returns an error without a hint. A message about one value begins with that value; see
    /// [`Argument::invalid`](super::Argument::invalid).
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// Adds a hint.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the hint, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UsageError {}

/// Collects the errors of one command line.
#[derive(Debug, Default)]
pub struct UsageErrors(Vec<UsageError>);

impl UsageErrors {
    /// Adds an error, unless it was added before.
    pub fn add(&mut self, error: UsageError) {
        if !self.0.contains(&error) {
            self.0.push(error);
        }
    }

    /// Returns the value, or adds the error.
    pub fn ok<T>(&mut self, result: Result<T, UsageError>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Returns the value, or adds all errors.
    pub fn all_ok<T>(&mut self, result: Result<T, Vec<UsageError>>) -> Option<T> {
        result.map_err(|errors| errors.into_iter().for_each(|error| self.add(error))).ok()
    }

    /// Returns the value, or adds the error and returns `fallback`, which only serves to find
    /// further errors.
    pub fn or<T>(&mut self, result: Result<T, UsageError>, fallback: T) -> T {
        self.ok(result).unwrap_or(fallback)
    }

    /// Returns the value, or adds the error and returns the default value.
    pub fn or_default<T: Default>(&mut self, result: Result<T, UsageError>) -> T {
        self.ok(result).unwrap_or_default()
    }

    /// Returns true if there is no error so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `value`, or all errors if there are any.
    ///
    /// # Errors
    ///
    /// Returns the errors in the order of their addition.
    pub fn into_result<T>(self, value: T) -> Result<T, Vec<UsageError>> {
        if self.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every error is kept once, in order; values are kept only without errors.
    #[test]
    fn errors_are_collected_once() {
        let wrong = |text: &str| UsageError::new(text).with_hint("h");
        let mut errors = UsageErrors::default();
        assert_eq!(errors.ok(Ok(1)), Some(1));
        assert_eq!(errors.or(Err(wrong("b")), 2), 2);
        assert_eq!(errors.or_default::<u8>(Err(wrong("a"))), 0);
        assert_eq!(errors.ok::<u8>(Err(wrong("b"))), None);
        assert_eq!(errors.all_ok::<u8>(Err(vec![wrong("c"), wrong("a")])), None);
        let errors = errors.into_result(3).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["b", "a", "c"]);
        assert_eq!(errors[0].hint(), Some("h"));
        assert_eq!(UsageErrors::default().into_result(3), Ok(3));
    }
}
