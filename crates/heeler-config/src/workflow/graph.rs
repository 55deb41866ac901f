//! Diagrams of a workflow, for Mermaid and for a terminal.
//!
//! The terminal diagram has a row per layer: first the phases without dependencies, then those that
//! depend on them. A phase that does not depend on exactly the row above shows its dependencies. A
//! row that is too wide is split into one line per phase. Start at [`mermaid`] and [`draw`].

use std::fmt::Write as _;

use super::definition::{Phase, PhaseRepeat, PhaseWork, TriggerRule, Workflow};

/// Status of a phase in a diagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseDisplayStatus {
    /// It waits for other phases.
    Waiting,
    Running,
    /// A gate is open.
    WaitingForAnswer,
    Succeeded,
    Failed,
    Skipped,
    Cancelled,
}

impl PhaseDisplayStatus {
    /// Returns the symbol shown before a phase.
    pub fn symbol(self) -> char {
        match self {
            PhaseDisplayStatus::Waiting => '·',
            PhaseDisplayStatus::Running => '▶',
            PhaseDisplayStatus::WaitingForAnswer => '?',
            PhaseDisplayStatus::Succeeded => '✓',
            PhaseDisplayStatus::Failed => '✗',
            PhaseDisplayStatus::Skipped => '-',
            PhaseDisplayStatus::Cancelled => '×',
        }
    }
}

/// Draws a workflow in the Mermaid language.
pub fn mermaid(workflow: &Workflow) -> String {
    let mut text = "flowchart TD\n".to_owned();
    for (place, phase) in workflow.phases.iter().enumerate() {
        let label = [title(phase), kind(phase)].join("<br>");
        // Mermaid ends a label at a quote, and has its own form of escapes.
        let label = label.replace('"', "#quot;");
        let (open, close) = match phase.work {
            PhaseWork::Context => ("([", "])"),
            PhaseWork::Agent { .. } => ("[", "]"),
            PhaseWork::Bash { .. } | PhaseWork::Script { .. } | PhaseWork::PostReview => {
                ("[[", "]]")
            }
        };
        let label = label.trim_end_matches("<br>");
        let _infallible = writeln!(text, "  p{place}{open}\"{label}\"{close}");
        if let PhaseRepeat::Until(_) | PhaseRepeat::Review(_) = phase.repeat {
            let _infallible = writeln!(text, "  p{place} --> p{place}");
        }
    }
    for (place, phase) in workflow.phases.iter().enumerate() {
        for wait in &phase.depends_on {
            // A phase with a gate is over when the gate is answered.
            let from = match &workflow.phases[*wait].gate {
                Some(_) => format!("g{wait}"),
                None => format!("p{wait}"),
            };
            let arrow = match phase.trigger_rule {
                // The usual rule needs no label.
                TriggerRule::AllSuccess => "-->".to_owned(),
                rule => format!("-. {rule} .->"),
            };
            let _infallible = writeln!(text, "  {from} {arrow} p{place}");
        }
        if let Some(gate) = &phase.gate {
            let name = gate.name.replace('"', "#quot;");
            let _infallible = writeln!(text, "  p{place} --> g{place}{{\"{name}\"}}");
        }
    }
    text
}

/// Draws a workflow for a terminal that is `width` columns wide.
pub fn draw(
    workflow: &Workflow,
    state: &dyn Fn(usize) -> PhaseDisplayStatus,
    width: usize,
) -> Vec<String> {
    let layers = layers(workflow);
    let mut lines = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let above = number.checked_sub(1).map(|above| layers[above].as_slice());
        if number > 0 {
            lines.push("  │".to_owned());
        }
        let boxes: Vec<String> =
            layer.iter().map(|place| phase_label(workflow, *place, state(*place))).collect();
        let row = boxes.join("   ");
        // The arrows of a row mean that each phase waits for the whole row above.
        let needs_notes =
            layer.iter().any(|place| !depends_on_whole_layer(&workflow.phases[*place], above));
        if row.chars().count() <= width && !needs_notes {
            lines.push(row);
            continue;
        }
        for (place, text) in layer.iter().zip(boxes) {
            let phase = &workflow.phases[*place];
            let note = match depends_on_whole_layer(phase, above) {
                true => String::new(),
                false => format!("  ← {}", dependency_names(workflow, phase)),
            };
            lines.extend(wrap_line(&text, &note, width));
        }
    }
    lines
}

/// Returns true if a phase depends on exactly the row above.
fn depends_on_whole_layer(phase: &Phase, above: Option<&[usize]>) -> bool {
    let above = above.unwrap_or_default();
    phase.depends_on.len() == above.len()
        && above.iter().all(|place| phase.depends_on.contains(place))
        // Another rule needs its note even if the dependencies are the same.
        && phase.trigger_rule == TriggerRule::AllSuccess
}

fn dependency_names(workflow: &Workflow, phase: &Phase) -> String {
    let names: Vec<&str> =
        phase.depends_on.iter().map(|wait| workflow.phases[*wait].name.as_str()).collect();
    match phase.trigger_rule {
        TriggerRule::AllSuccess if names.is_empty() => "nothing".to_owned(),
        TriggerRule::AllSuccess => names.join(", "),
        rule => format!("{} ({rule})", names.join(", ")),
    }
}

/// Groups phases by the length of their longest dependency chain, in file order within a group.
fn layers(workflow: &Workflow) -> Vec<Vec<usize>> {
    let count = workflow.phases.len();
    let mut left: Vec<usize> = workflow.phases.iter().map(|it| it.depends_on.len()).collect();
    let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (place, phase) in workflow.phases.iter().enumerate() {
        phase.depends_on.iter().for_each(|wait| waiters[*wait].push(place));
    }
    let mut layers = Vec::new();
    let mut layer: Vec<usize> = (0..count).filter(|place| left[*place] == 0).collect();
    while !layer.is_empty() {
        let mut next = Vec::new();
        for waiter in layer.iter().flat_map(|place| &waiters[*place]) {
            left[*waiter] -= 1;
            if left[*waiter] == 0 {
                next.push(*waiter);
            }
        }
        // In file order, which the walk along the dependants does not keep.
        next.sort_unstable();
        layers.push(std::mem::replace(&mut layer, next));
    }
    layers
}

/// Describes a phase briefly: `✓ build (bash, ↻ ≤3) ⏸ go`.
fn phase_label(workflow: &Workflow, place: usize, mark: PhaseDisplayStatus) -> String {
    let phase = &workflow.phases[place];
    let mut text = format!("{} {}", mark.symbol(), title(phase));
    let kind = kind(phase);
    if !kind.is_empty() {
        let _infallible = write!(text, " ({kind})");
    }
    if let Some(gate) = &phase.gate {
        let _infallible = write!(text, " ⏸ {}", gate.name);
    }
    text
}

fn title(phase: &Phase) -> String {
    phase.label.clone().unwrap_or_else(|| phase.name.to_string())
}

fn kind(phase: &Phase) -> String {
    let work = match &phase.work {
        PhaseWork::Agent { .. } => phase.agent.as_ref().map(ToString::to_string),
        PhaseWork::Context => None,
        PhaseWork::Bash { .. } => Some("bash".to_owned()),
        PhaseWork::Script { language, .. } => Some(language.to_string()),
        PhaseWork::PostReview => Some("post-review".to_owned()),
    };
    let repeat = match &phase.repeat {
        PhaseRepeat::Once => None,
        PhaseRepeat::Review(review) => Some(format!("review ≤{}", review.max_cycles)),
        PhaseRepeat::Until(until) => Some(match &until.max_iterations {
            super::ContextNumber::Fixed(most) => format!("loop ≤{most}"),
            super::ContextNumber::Context { path, .. } => format!("loop ≤{path}"),
        }),
        PhaseRepeat::Foreach(each) => Some(format!("each {}", each.name)),
    };
    [work, repeat].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Fits a line and its note into `width` columns: moves the note to a second line and truncates.
fn wrap_line(text: &str, note: &str, width: usize) -> Vec<String> {
    let fits = text.chars().count() + note.chars().count() <= width;
    match (fits, note) {
        (true, _) => vec![format!("{text}{note}")],
        (false, "") => vec![truncate_width(text, width)],
        (false, note) => {
            vec![truncate_width(text, width), truncate_width(&format!("  {note}"), width)]
        }
    }
}

fn truncate_width(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_owned(),
        false => {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            kept + "…"
        }
    }
}
