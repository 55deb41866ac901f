//! Faults of a script, with their position.

use thiserror::Error;

/// One fault of a script.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: {message}", self.location())]
pub struct ScriptFault {
    /// Path from the list of steps to the fault.
    pub path: Vec<ScriptPathSegment>,
    /// Description of the fault and the probable intention.
    pub message: String,
}

/// One segment of the path to a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptPathSegment {
    /// Index of a list item, counted from zero.
    Item(usize),
    /// Key of a map.
    Key(String),
}

impl ScriptFault {
    /// Returns the position with steps counted from one: `step 2`, `step 2, do: step 1`.
    pub fn location(&self) -> String {
        let mut place = String::new();
        let mut parts = self.path.iter().peekable();
        while let Some(part) = parts.next() {
            match part {
                ScriptPathSegment::Item(number) => place.push_str(&format!("step {}", number + 1)),
                // A key is shown only if it leads to nested steps.
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
