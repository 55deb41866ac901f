//! Draws a workflow run: one line per phase, as many as fit. Start at [`frame`].

use anstyle::{AnsiColor, Style};
use heeler_config::workflow::graph::PhaseDisplayStatus;
use heeler_model::job_row;
use heeler_model::workflow::PhasePart;
use heeler_query::progress::{self, WorkflowPhaseProgress, WorkflowRunProgress};
use heeler_store::{WorkflowPartRow, WorkflowRunHead};
use jiff::Timestamp;
use unicode_width::UnicodeWidthStr as _;

use super::super::runs;
use crate::output::{SPINNER_FRAMES, SafeText, one_line, truncate_to_width};

/// Widest name that other names are aligned to.
const NAME_WIDTH_MAX: usize = 24;
/// Narrowest room for a phase's activity; below this, the activity is left out.
const DOING_WIDTH_MIN: usize = 8;
/// Rows that are left free above the frame.
const ROWS_ABOVE: usize = 3;

/// Returns the symbol of a phase, and its style.
pub(in super::super) fn phase_symbol(status: PhaseDisplayStatus) -> (char, Style) {
    match status {
        PhaseDisplayStatus::Waiting => ('·', Style::new().dimmed()),
        PhaseDisplayStatus::Running => ('▸', AnsiColor::Cyan.on_default()),
        PhaseDisplayStatus::WaitingForAnswer => ('◆', AnsiColor::Magenta.on_default()),
        PhaseDisplayStatus::Succeeded => ('✓', AnsiColor::Green.on_default()),
        PhaseDisplayStatus::Failed => ('✗', AnsiColor::Red.on_default()),
        PhaseDisplayStatus::Skipped => ('○', Style::new().dimmed()),
        PhaseDisplayStatus::Cancelled => ('✗', AnsiColor::Yellow.on_default()),
    }
}

/// Returns the name of a part, including its phase.
pub(super) fn part_name(phase: &WorkflowPhaseProgress, part: &WorkflowPartRow) -> String {
    let name = one_line(phase.title());
    phase.part_name(part.part).map(|word| format!("{name} {word}")).unwrap_or(name)
}

/// Describes the progress of a phase over several items.
pub(super) fn items_word(phase: &WorkflowPhaseProgress, open: usize) -> String {
    let is_item = |part: &&WorkflowPartRow| matches!(part.part, PhasePart::Item(_));
    let done = phase.parts.iter().filter(is_item).filter(|part| part.outcome.is_some()).count();
    match phase.items.as_ref().map(Vec::len) {
        Some(items) => format!("{} of {items} done, {open} running", done.min(items)),
        None => format!("{open} running"),
    }
}

/// Returns the line for the start of a phase.
pub(super) fn phase_start_line(phase: &WorkflowPhaseProgress) -> SafeText {
    let (sign, style) = phase_symbol(PhaseDisplayStatus::Running);
    SafeText::styled(style, &sign.to_string())
        .append(format!(" {} started", one_line(phase.title())))
}

/// Returns the line for the start or end of a phase.
pub(super) fn phase_change_line(phase: &WorkflowPhaseProgress, now: Timestamp) -> SafeText {
    let (sign, style) = phase_symbol(phase.status);
    let name = one_line(phase.title());
    let rest = match phase.status {
        PhaseDisplayStatus::Waiting | PhaseDisplayStatus::Running => {
            return phase_start_line(phase);
        }
        PhaseDisplayStatus::WaitingForAnswer => " waiting for an answer".to_owned(),
        PhaseDisplayStatus::Skipped => " skipped".to_owned(),
        PhaseDisplayStatus::Succeeded => {
            figures(phase, now).map(|it| format!(" {it}")).unwrap_or_default()
        }
        PhaseDisplayStatus::Failed | PhaseDisplayStatus::Cancelled => {
            let took = figures(phase, now).map(|it| format!(" {it}")).unwrap_or_default();
            let why = phase.error().map(|why| format!(": {}", one_line(why))).unwrap_or_default();
            format!(" {}{took}{why}", progress::phase_status_name(phase.status))
        }
    };
    SafeText::styled(style, &sign.to_string()).append(format!(" {name}{rest}"))
}

/// Returns the elapsed time and the cost of a phase.
fn figures(phase: &WorkflowPhaseProgress, now: Timestamp) -> Option<String> {
    let took = job_row::format_duration(phase.elapsed_ms(now)?);
    Some(match runs::cost(phase.cost_micros()) {
        Some(cost) => format!("{took} {cost}"),
        None => took,
    })
}

/// Returns the last line of the frame: elapsed time and cost of the run.
fn total_line(head: &WorkflowRunHead, names: usize, width: usize, now: Timestamp) -> SafeText {
    let until = head.finished_at.unwrap_or(now);
    // The clock may have been set back since the run started.
    let took = until.duration_since(head.started_at).as_millis().max(0);
    let took = job_row::format_duration(i64::try_from(took).unwrap_or(i64::MAX));
    let cost = runs::cost(head.spent).map(|cost| format!(" {cost}")).unwrap_or_default();
    let text = format!("  {:names$}  {:>7}", "total", format!("{took}{cost}"));
    SafeText::styled(Style::new().dimmed(), truncate_to_width(&text, width.saturating_sub(1)))
}

/// Draws a run for a terminal of this width and height.
pub(super) fn frame(
    progress: &WorkflowRunProgress,
    doing: &dyn Fn(&WorkflowPhaseProgress) -> Option<String>,
    turn: usize,
    (width, rows): (usize, usize),
    now: Timestamp,
) -> Vec<SafeText> {
    // One more row for the total.
    let room = rows.saturating_sub(ROWS_ABOVE + 1).max(1);
    let shown = choose(&progress.phases, room);
    let names = shown.iter().filter_map(|row| match row {
        FrameLine::Phase(at) => Some(one_line(progress.phases[*at].title()).width()),
        FrameLine::Omitted(..) => None,
    });
    // Half of the width is kept for what the phases do.
    let names = names.max().unwrap_or(0).min(NAME_WIDTH_MAX).min(width / 2);
    let line = |row: &FrameLine| match row {
        FrameLine::Phase(at) => {
            let phase = &progress.phases[*at];
            let doing = match phase.status {
                PhaseDisplayStatus::Running | PhaseDisplayStatus::Waiting => doing(phase),
                PhaseDisplayStatus::WaitingForAnswer => Some("waiting for an answer".to_owned()),
                PhaseDisplayStatus::Failed => phase.error().map(one_line),
                PhaseDisplayStatus::Skipped => Some("skipped".to_owned()),
                _ => None,
            };
            phase_line(phase, doing, names, turn, width, now)
        }
        FrameLine::Omitted(count, what) => {
            let text = format!("  … {count} more {what}");
            SafeText::styled(Style::new().dimmed(), truncate_to_width(&text, width - 1))
        }
    };
    let total = total_line(&progress.row.head, names, width, now);
    shown.iter().map(line).chain([total]).collect()
}

fn phase_line(
    phase: &WorkflowPhaseProgress,
    doing: Option<String>,
    names: usize,
    turn: usize,
    width: usize,
    now: Timestamp,
) -> SafeText {
    let (sign, style) = phase_symbol(phase.status);
    let sign = match phase.status {
        PhaseDisplayStatus::Running => SPINNER_FRAMES[turn % SPINNER_FRAMES.len()],
        _ => sign,
    };
    let name = one_line(phase.title());
    let name = truncate_to_width(&name, names);
    let figures = figures(phase, now)
        .filter(|_| phase.status != PhaseDisplayStatus::Skipped)
        .unwrap_or_default();
    let pad = names.saturating_sub(name.width());
    let head = format!("{name}{:pad$}  {figures:>7}", "");
    let head = truncate_to_width(&head, width.saturating_sub(3));
    // Leave one column free: a line that fills the last column may wrap.
    let left = width.saturating_sub(2 + head.width() + 3);
    let doing = doing.filter(|_| left >= DOING_WIDTH_MIN).unwrap_or_default();
    let cut = truncate_to_width(&doing, left);
    let dots = if cut.len() < doing.len() { "…" } else { "" };
    // The ellipsis needs a column of its own.
    let cut = if dots.is_empty() { cut } else { truncate_to_width(&doing, left - 1) };
    let dimmed =
        if phase.status == PhaseDisplayStatus::Failed { style } else { Style::new().dimmed() };
    let head = match phase.status {
        PhaseDisplayStatus::Waiting | PhaseDisplayStatus::Skipped => {
            SafeText::styled(Style::new().dimmed(), head)
        }
        _ => SafeText::from(head),
    };
    let text = SafeText::styled(style, &sign.to_string()).append(" ").append(head);
    match cut.is_empty() {
        true => text,
        false => text.append("  ").append(SafeText::styled(dimmed, &format!("{cut}{dots}"))),
    }
}

/// One line of the frame.
#[derive(Debug, PartialEq)]
enum FrameLine {
    Phase(usize),
    /// Number of phases left out, and their common description.
    Omitted(usize, &'static str),
}

/// Chooses the lines: all phases, or else the active ones, the last that ended and the next.
fn choose(phases: &[WorkflowPhaseProgress], room: usize) -> Vec<FrameLine> {
    if phases.len() <= room {
        return (0..phases.len()).map(FrameLine::Phase).collect();
    }
    let of = |wanted: fn(PhaseDisplayStatus) -> bool| -> Vec<usize> {
        (0..phases.len()).filter(|at| wanted(phases[*at].status)).collect()
    };
    let is_over = |status| {
        matches!(
            status,
            PhaseDisplayStatus::Succeeded
                | PhaseDisplayStatus::Failed
                | PhaseDisplayStatus::Skipped
                | PhaseDisplayStatus::Cancelled
        )
    };
    let (over, on) = (
        of(is_over),
        of(|status| {
            matches!(status, PhaseDisplayStatus::Running | PhaseDisplayStatus::WaitingForAnswer)
        }),
    );
    let waiting = of(|status| status == PhaseDisplayStatus::Waiting);
    // Up to three lines name the phases that are left out.
    let room = room.saturating_sub(3).max(1);
    let on_shown = on.len().min(room);
    let rest = room - on_shown;
    let over_shown = over.len().min(rest.div_ceil(2).max(rest.saturating_sub(waiting.len())));
    let waiting_shown = waiting.len().min(rest - over_shown);
    let mut shown = Vec::new();
    let more = |shown: &mut Vec<FrameLine>, count: usize, what| {
        if count > 0 {
            shown.push(FrameLine::Omitted(count, what));
        }
    };
    more(&mut shown, over.len() - over_shown, "ended");
    shown.extend(over[over.len() - over_shown..].iter().copied().map(FrameLine::Phase));
    shown.extend(on[..on_shown].iter().copied().map(FrameLine::Phase));
    more(&mut shown, on.len() - on_shown, "running");
    shown.extend(waiting[..waiting_shown].iter().copied().map(FrameLine::Phase));
    more(&mut shown, waiting.len() - waiting_shown, "waiting");
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, status: PhaseDisplayStatus) -> WorkflowPhaseProgress {
        let began: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        WorkflowPhaseProgress {
            name: name.to_owned(),
            label: None,
            status,
            parts: Vec::new(),
            items: None,
            started_at: (status != PhaseDisplayStatus::Waiting).then_some(began),
            finished_at: None,
        }
    }

    #[test]
    fn a_line_fits_any_terminal_and_gives_up_what_is_done_first() {
        let now: Timestamp = "2026-11-15T12:00:12Z".parse().unwrap();
        let phases = [
            phase("a-very-long-name-of-a-phase-indeed", PhaseDisplayStatus::Running),
            phase("日本", PhaseDisplayStatus::Failed),
        ];
        for phase in &phases {
            for width in 20..120 {
                let doing = Some("Reads a file with 日本語 in its name, and more".to_owned());
                let line = phase_line(phase, doing, NAME_WIDTH_MAX.min(width / 2), 3, width, now);
                let plain = line.plain();
                assert!(plain.width() < width, "{width}: {plain:?}");
                assert!(plain.contains("12.0s") || width < 30, "{width}: {plain:?}");
            }
        }
        let line = phase_line(&phases[0], Some("Reads it".to_owned()), 24, 0, 80, now);
        assert_eq!(line.plain(), "⠋ a-very-long-name-of-a-ph    12.0s  Reads it");
    }

    #[test]
    fn on_a_low_terminal_what_goes_on_is_shown_and_the_rest_is_counted() {
        use PhaseDisplayStatus::{Running, Succeeded, Waiting};
        let statuses = [vec![Succeeded; 50], vec![Running; 2], vec![Waiting; 50]].concat();
        let phases: Vec<WorkflowPhaseProgress> =
            statuses.iter().map(|status| phase("p", *status)).collect();
        let shown = choose(&phases, 10);
        assert_eq!(shown.len(), 9);
        assert_eq!(shown[0], FrameLine::Omitted(47, "ended"));
        assert!(shown.contains(&FrameLine::Phase(50)) && shown.contains(&FrameLine::Phase(51)));
        assert_eq!(shown[8], FrameLine::Omitted(48, "waiting"));
        for room in 1..120 {
            assert!(choose(&phases, room).len() <= room.max(4), "{room}");
        }
        assert_eq!(choose(&phases, 102).len(), 102, "all, where there is room");
    }
}
