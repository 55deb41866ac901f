//! A workflow as a picture: for mermaid, and for a terminal.

use super::definition::Workflow;

/// How a phase stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It waits for others.
    Waiting,
    /// It goes on.
    Running,
    /// Somebody is asked.
    Asking,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// It was left out.
    Skipped,
    /// A person ended it.
    Cancelled,
}

/// Draws a workflow in mermaid's language.
pub fn mermaid(workflow: &Workflow) -> String {
    let names: Vec<&str> = workflow.phases.iter().map(|phase| phase.name.as_str()).collect();
    format!("flowchart TD\n  {}\n", names.join("\n  "))
}

/// Draws a workflow for a terminal of so many columns.
pub fn draw(workflow: &Workflow, state: &dyn Fn(usize) -> Mark, width: usize) -> Vec<String> {
    let line =
        |(place, phase): (usize, &super::Phase)| format!("{:?} {}", state(place), phase.name);
    let lines = workflow.phases.iter().enumerate().map(line);
    lines.map(|line| line.chars().take(width).collect()).collect()
}
