//! Tools that an agent wanted to use and was denied. A job that ends with success although its agent
//! could not do what it wanted must be visible as such. Start at [`DeniedTools`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Limit on the calls that are counted.
const CALLS_MAX: usize = 1_000;

/// Limit on the tools that are named; the others have one name together.
const TOOLS_MAX: usize = 8;
const OTHER_TOOLS: &str = "other tools";

/// Limit on the characters of a tool's name.
const NAME_CHARS_MAX: usize = 64;

/// Number of denied calls by tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeniedTools(BTreeMap<String, u64>);

impl DeniedTools {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the calls of another run of the same job.
    pub fn add(&mut self, other: &DeniedTools) {
        for (tool, count) in &other.0 {
            self.add_calls(tool, *count);
        }
    }

    fn add_calls(&mut self, tool: &str, count: u64) {
        let is_named = self.0.contains_key(tool) || self.0.len() < TOOLS_MAX;
        let tool = if is_named { tool } else { OTHER_TOOLS };
        let total = self.0.entry(tool.to_owned()).or_default();
        *total = total.saturating_add(count);
    }

    /// Changes the names of the tools, which come from the agent.
    pub fn map_names(&mut self, change: impl Fn(&str) -> String) {
        let before = std::mem::take(&mut self.0);
        self.0 = before.into_iter().map(|(tool, count)| (change(&tool), count)).collect();
    }

    /// Describes the calls in one line: `Bash (3 times), Write`.
    pub fn describe(&self) -> Option<String> {
        let text = |(tool, count): (&String, &u64)| match count {
            1 => crate::one_line(tool),
            count => format!("{} ({count} times)", crate::one_line(tool)),
        };
        let named: Vec<String> = self.0.iter().map(text).collect();
        (!named.is_empty()).then(|| named.join(", "))
    }
}

/// Denied calls of a run. Results of later turns repeat those of earlier ones, so calls are known by
/// their ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DeniedCalls(BTreeMap<String, String>);

impl DeniedCalls {
    /// Adds the calls that a result lists.
    pub(crate) fn add(&mut self, denied: &[(String, String)]) {
        for (id, tool) in denied {
            if self.0.len() < CALLS_MAX {
                self.0.insert(id.clone(), tool.chars().take(NAME_CHARS_MAX).collect());
            }
        }
    }

    pub(crate) fn by_tool(&self) -> DeniedTools {
        let mut tools = DeniedTools::default();
        for tool in self.0.values() {
            tools.add_calls(tool, 1);
        }
        tools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(list: &[(&str, &str)]) -> DeniedCalls {
        let mut calls = DeniedCalls::default();
        let list: Vec<_> = list.iter().map(|(id, tool)| ((*id).into(), (*tool).into())).collect();
        calls.add(&list);
        calls
    }

    #[test]
    fn a_call_that_two_results_list_counts_once() {
        let mut found = calls(&[("1", "Bash"), ("2", "Write")]);
        found.add(&[("1".to_owned(), "Bash".to_owned()), ("3".to_owned(), "Bash".to_owned())]);
        let mut tools = found.by_tool();
        assert_eq!(tools.describe().as_deref(), Some("Bash (2 times), Write"));
        tools.add(&calls(&[("9", "Write")]).by_tool());
        assert_eq!(tools.describe().as_deref(), Some("Bash (2 times), Write (2 times)"));
        assert_eq!(DeniedTools::default().describe(), None);
    }

    #[test]
    fn an_agent_cannot_make_the_description_long() {
        let mut many = DeniedCalls::default();
        for number in 0..2 * CALLS_MAX {
            many.add(&[(number.to_string(), format!("{number:05}{}\n", "x".repeat(999)))]);
        }
        let tools = many.by_tool();
        assert_eq!(tools.0.values().sum::<u64>(), CALLS_MAX as u64);
        let text = tools.describe().unwrap();
        assert!(text.ends_with("other tools (992 times)") && text.len() < 700, "{text}");
    }
}
