//! Lines around the input: activity, status and workers.

use heeler_chat::{ChatJobState, ChatSpeaker, ConversationStatus};
use jiff::Timestamp;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::TerminalTheme;
use crate::text::{one_line, truncate_to_width, width as width_of};

/// Returns the line that shows the agent's activity.
pub(crate) fn busy_line(
    what: &str,
    since: Timestamp,
    now: Timestamp,
    queued: usize,
    width: usize,
) -> String {
    // A clock that was set back must not show a negative time.
    let seconds = now.duration_since(since).as_secs().max(0);
    let long = match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    };
    let what = match one_line(what) {
        what if what.is_empty() => "working".to_owned(),
        what => what,
    };
    let queued = if queued > 0 { format!(" · {queued} queued") } else { String::new() };
    let rest = format!(" {long}{queued} · Esc interrupts");
    let room = width.saturating_sub(2 + width_of(&rest));
    // A few characters of the activity stay, even in a narrow window.
    truncate_to_width(&format!("* {}{rest}", truncate_to_width(&what, room.max(8))), width)
}

/// Returns the status line; parts that do not fit are omitted from its end.
pub(crate) fn status_line(
    status: &ConversationStatus,
    width: usize,
    theme: &TerminalTheme,
) -> Line<'static> {
    // Trouble replaces the whole line, because a person has to act on it.
    if let Some(trouble) = &status.trouble {
        return Line::styled(
            truncate_to_width(&format!("! {}", one_line(trouble)), width),
            theme.bad,
        );
    }
    let counted = |count: usize, word: &str| match count {
        0 => None,
        1 => Some(format!("1 {word}")),
        count => Some(format!("{count} {word}s")),
    };
    let parts = [
        Some(one_line(&status.agent)).filter(|agent| !agent.is_empty()),
        status.mode.as_deref().map(one_line),
        status.model.as_deref().map(one_line),
        // Before the first status there is nothing to count.
        (!status.agent.is_empty()).then(|| heeler_model::format_usd(status.cost_usd)),
        context_use(status.context_tokens, status.context_window),
        counted(status.attached, "output").map(|it| it + " attached"),
        counted(status.tasks, "task"),
        counted(status.loops, "loop"),
        status
            .busy
            // While the agent works, the line above shows the number.
            .is_none()
            .then(|| counted(status.queued, "message"))
            .flatten()
            .map(|it| it + " queued"),
        status.folder.as_deref().map(|folder| match &status.branch {
            Some(branch) => format!("{} ({})", one_line(folder), one_line(branch)),
            None => one_line(folder),
        }),
    ];
    let mut shown = String::new();
    for part in parts.into_iter().flatten() {
        let next = if shown.is_empty() { part } else { format!("{shown} · {part}") };
        if width_of(&next) > width && !shown.is_empty() {
            // Parts are ordered by importance, so the rest is left out.
            break;
        }
        shown = next;
    }
    Line::styled(truncate_to_width(&shown, width), theme.dim)
}

/// Returns the line of the agent and its workers, scrolled to the one in view.
pub(crate) fn worker_chips(
    status: &ConversationStatus,
    view: &ChatSpeaker,
    width: usize,
    theme: &TerminalTheme,
) -> Line<'static> {
    let mut chips = vec![("main".to_owned(), *view == ChatSpeaker::Coordinator)];
    for worker in &status.workers {
        let sign = match worker.state {
            ChatJobState::Waiting => "…",
            ChatJobState::Running => "▶",
            ChatJobState::Done => "✓",
            ChatJobState::Failed => "✗",
        };
        let unseen = if worker.unseen > 0 { format!(" +{}", worker.unseen) } else { String::new() };
        let chip = format!("{} {sign}{unseen}", truncate_to_width(&one_line(&worker.name), 20));
        chips.push((chip, matches!(view, ChatSpeaker::Worker(name) if *name == worker.name)));
    }
    let chips: Vec<(String, bool)> = chips
        .into_iter()
        .map(|(chip, is_seen)| {
            (if is_seen { format!("[{chip}]") } else { format!(" {chip} ") }, is_seen)
        })
        .collect();
    // Shows as many entries before the one in view as fit.
    let seen = chips.iter().position(|chip| chip.1).unwrap_or_default();
    let mut first = seen;
    // Two columns are left for the arrows.
    let mut used = width_of(&chips[seen].0) + 2;
    while first > 0 && used + width_of(&chips[first - 1].0) <= width {
        first -= 1;
        used += width_of(&chips[first].0);
    }
    let mut spans = vec![];
    let mut left = width.saturating_sub(2);
    if first > 0 {
        spans.push(Span::styled("‹", theme.dim));
    }
    for (chip, is_seen) in chips[first..].iter() {
        if width_of(chip) > left {
            spans.push(Span::styled("›", theme.dim));
            break;
        }
        left -= width_of(chip);
        spans
            .push(Span::styled(chip.clone(), if *is_seen { theme.selected } else { Style::new() }));
    }
    Line::from(spans)
}

/// Returns the part of the context that is in use, or the tokens if the model's limit is unknown.
fn context_use(tokens: Option<u64>, window: Option<u64>) -> Option<String> {
    Some(match (tokens?, window.filter(|window| *window > 0)) {
        (0, _) => "context 0%".to_owned(),
        (tokens, Some(window)) => {
            // More than nothing is never shown as nothing.
            let percent = tokens.saturating_mul(100).div_ceil(window);
            format!("context {percent}%")
        }
        (tokens, None) => format!("{} tokens", format_count(tokens)),
    })
}

/// Returns a number in short form, such as `12k`.
fn format_count(number: u64) -> String {
    match number {
        ..1000 => number.to_string(),
        1000..1_000_000 => format!("{}k", number / 1000),
        _ => format!("{}.{}M", number / 1_000_000, number / 100_000 % 10),
    }
}
