//! What is wrong with a script, and where.

use thiserror::Error;

/// One thing wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: {message}", self.location())]
pub struct ScriptFault {
    /// The way from the list of steps to the fault.
    pub path: Vec<ScriptPathSegment>,
    /// What is wrong, and what was probably meant.
    pub message: String,
}

/// One part of the way to a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptPathSegment {
    /// An item of a list, from zero.
    Item(usize),
    /// A key of a map.
    Key(String),
}

impl ScriptFault {
    /// Names the place as people count: `step 2`, `step 2, do: step 1`.
    pub fn location(&self) -> String {
        let mut place = String::new();
        let mut parts = self.path.iter().peekable();
        while let Some(part) = parts.next() {
            match part {
                ScriptPathSegment::Item(number) => place.push_str(&format!("step {}", number + 1)),
                // A key is named only on the way to the steps within it.
                ScriptPathSegment::Key(key)
                    if matches!(parts.peek(), Some(ScriptPathSegment::Item(_))) =>
                {
                    place.push_str(&format!(", {key}: "));
                }
                ScriptPathSegment::Key(_) => {}
            }
        }
        if place.is_empty() { "script".to_owned() } else { place }
    }
}
