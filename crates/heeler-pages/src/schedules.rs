//! Schedule page: a calendar of the past and the coming day, as drawing and as lists.

use heeler_model::JobStatus;
use heeler_query::calendar::{FleetCalendar, ScheduleTimeline, TimelineEntry, TimelineOutcome};
use jiff::Timestamp;
use maud::{Markup, html};

use crate::components::{
    agent_link, empty_notice, encode_path, format_exact, format_span, isolated_text, job_link,
    relative_time, status_badge, visible_line,
};
use crate::{DashboardSection, PageFrame};

/// Slots in which the two days are drawn: 15 minutes each.
const SLOTS: usize = 192;

/// Listed due times per schedule.
// A schedule that is due each minute would hide the others.
const DUE_EACH_MAX: usize = 3;

/// Most entries of a list.
const LISTED_MAX: usize = 120;

pub fn page(frame: &PageFrame, calendar: &FleetCalendar) -> Markup {
    let content = html! {
        div.head {
            h1 { "Schedules" }
            p.muted { "The past and the coming day" }
        }
        section.card #lanes data-live aria-label="Calendar" {
            @if calendar.lanes.is_empty() {
                (empty_notice("No schedules", html! { "An agent's " code { "schedules" } " in its config define when it starts automatically." }))
            } @else {
                (legend())
                div.lanes {
                    (hour_ticks(frame, calendar))
                    @for lane in &calendar.lanes { (lane_row(frame, calendar, lane)) }
                }
            }
        }
        @if !calendar.lanes.is_empty() { (entry_lists(frame, calendar)) }
    };
    frame.page(DashboardSection::Schedules, "Schedules", content)
}

fn legend() -> Markup {
    html! {
        header {
            span.row.small.legend {
                (status_badge("completed")) (status_badge("failed")) (status_badge("running")) (status_badge("skipped"))
                span.status { "due" }
            }
        }
    }
}

fn hour_ticks(frame: &PageFrame, calendar: &FleetCalendar) -> Markup {
    let tick = |part: i64| {
        let length = calendar.until.as_second() - calendar.from.as_second();
        // The window is divided by time and not by hour, because it starts at any minute.
        let at = calendar.from.as_second() + length * part / 8;
        let at = Timestamp::from_second(at).unwrap_or(calendar.now);
        at.to_zoned(frame.zone.clone()).strftime("%H:%M").to_string()
    };
    html! {
        div.lane.hours aria-hidden="true" {
            span {}
            div.ticks { @for part in 0..=8 { span { @if part == 4 { "now" } @else { (tick(part)) } } } }
        }
    }
}

fn lane_row(frame: &PageFrame, calendar: &FleetCalendar, lane: &ScheduleTimeline) -> Markup {
    let api = encode_path("/api/v1/schedules", &[&lane.agent, &lane.schedule]);
    html! {
        div.lane {
            div.stack-s {
                div.line.row {
                    strong { (isolated_text(&lane.schedule)) }
                    (agent_link(&lane.agent))
                }
                div.row.small {
                    span.muted.grow.cut { (visible_line(&lane.when)) }
                    @if frame.can_operate() { (toggle_button(&api, lane.enabled, &lane.schedule)) (run_now_button(&api, &lane.schedule)) }
                    @else { (status_badge(if lane.enabled { "enabled" } else { "disabled" })) }
                }
            }
            (draw_lane(calendar, lane))
        }
    }
}

/// Renders the switch that enables or disables a schedule; `api` is its API path.
pub(crate) fn toggle_button(api: &str, enabled: bool, name: &str) -> Markup {
    let change = if enabled { "disable" } else { "enable" };
    html! {
        // The state is text too, so that it does not depend on the colour.
        button.switch type="button" role="switch" aria-checked=(enabled)
            aria-label={ (visible_line(name)) " is enabled" }
            data-action={ "POST " (api) "/" (change) } { span aria-hidden="true" { @if enabled { "on" } @else { "off" } } }
    }
}

/// Renders the button that runs a schedule now.
pub(crate) fn run_now_button(api: &str, name: &str) -> Markup {
    html! {
        button.button.small.icon.i-play type="button" data-action={ "POST " (api) "/trigger" }
            aria-label={ "Run now: " (visible_line(name)) } { "Run now" }
    }
}

/// Counts of one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CalendarSlot {
    ran: u32,
    failed: u32,
    running: u32,
    skipped: u64,
    due: u32,
}

fn fill_slots(calendar: &FleetCalendar, lane: &ScheduleTimeline) -> [CalendarSlot; SLOTS] {
    let mut slots = [CalendarSlot::default(); SLOTS];
    let (from, until) = (calendar.from.as_second(), calendar.until.as_second());
    let place = |at: Timestamp| {
        // An empty window must not divide by zero.
        let share = (at.as_second() - from) as f64 / (until - from).max(1) as f64;
        // A due time at the very end belongs to the last slot.
        ((share * SLOTS as f64) as usize).min(SLOTS - 1)
    };
    for TimelineEntry { at, what } in &lane.marks {
        let slot = &mut slots[place(*at)];
        match what {
            TimelineOutcome::Ran { status: Some(JobStatus::Failed), .. } => slot.failed += 1,
            TimelineOutcome::Ran {
                // Both have no result yet.
                status: Some(JobStatus::Running | JobStatus::Pending),
                ..
            } => {
                slot.running += 1;
            }
            // A workflow run or a removed job has no status, but it did run.
            TimelineOutcome::Ran { .. } => slot.ran += 1,
            TimelineOutcome::Skipped { count, .. } => slot.skipped += count,
            TimelineOutcome::Due => slot.due += 1,
        }
    }
    slots
}

fn draw_lane(calendar: &FleetCalendar, lane: &ScheduleTimeline) -> Markup {
    let slots = fill_slots(calendar, lane);
    let middle = SLOTS * 10 / 2;
    html! {
        svg role="img" aria-label=(describe_lane(calendar, lane)) viewBox={ "0 0 " (SLOTS * 10) " 40" } preserveAspectRatio="none" {
            rect.past width=(middle) height="40" rx="3" {}
            rect.track x=(middle) width=(middle) height="40" rx="3" {}
            @for (place, slot) in slots.iter().enumerate() { (draw_slot(place * 10, slot)) }
            @if let Some(from) = slots.iter().rposition(|slot| slot.due > 0).filter(|_| lane.more_due) {
                // Further due times exist beyond the drawn ones.
                line.due-more x1=(from * 10 + 12) x2=(SLOTS * 10) y1="20" y2="20" {}
            }
            line.now x1=(middle) x2=(middle) y1="-3" y2="43" {}
        }
    }
}

/// Draws a slot: a bar for completed jobs, a bar from above for failed ones, a half-height frame
/// for skipped due times, an open bar for coming ones. They differ in shape, not only in colour.
fn draw_slot(x: usize, slot: &CalendarSlot) -> Markup {
    let words = |parts: &[(u64, &str)]| {
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        parts.join(", ")
    };
    // Most slots are empty, and each element costs time in the browser.
    if *slot == CalendarSlot::default() {
        return Markup::default();
    }
    let CalendarSlot { ran, failed, running, skipped, due } = *slot;
    let title = words(&[
        (ran.into(), "ran"),
        (failed.into(), "failed"),
        (running.into(), "running or waiting"),
        (skipped, "skipped"),
        (due.into(), "due"),
    ]);
    html! {
        g {
            // The tooltip has the figures, because several marks may overlap.
            title { (title) }
            // Drawn from the bottom up, so that failures are never covered.
            @if due > 0 { rect.due x=(x + 2) y="10" width="6" height="20" rx="2" {} }
            @if skipped > 0 { rect.skip-mark x=(x + 1) y="26" width="8" height="11" rx="1" {} }
            @if ran > 0 { rect.ran x=(x + 1) y="6" width="8" height="28" rx="2" {} }
            @if running > 0 { rect.ran.running x=(x + 1) y="12" width="8" height="16" rx="4" {} }
            @if failed > 0 { rect.ran.failed x=(x + 1) y="2" width="8" height="16" rx="1" {} }
        }
    }
}

fn describe_lane(calendar: &FleetCalendar, lane: &ScheduleTimeline) -> String {
    let mut all = CalendarSlot::default();
    for slot in fill_slots(calendar, lane) {
        all.ran += slot.ran;
        all.failed += slot.failed;
        all.running += slot.running;
        all.skipped += slot.skipped;
        all.due += slot.due;
    }
    // The counts are lower bounds if the list was cut.
    let more = |more: bool| if more { "more than " } else { "" };
    format!(
        "Past day: {}{} completed, {} failed, {} running or waiting, {} skipped. Coming day: {}{} due.",
        more(lane.more_past),
        all.ran,
        all.failed,
        all.running,
        all.skipped,
        more(lane.more_due),
        all.due
    )
}

fn past_entries(calendar: &FleetCalendar) -> Vec<(&ScheduleTimeline, &TimelineEntry)> {
    let entries =
        calendar.lanes.iter().flat_map(|lane| lane.marks.iter().map(move |entry| (lane, entry)));
    let mut past: Vec<_> =
        entries.filter(|(_, entry)| entry.what != TimelineOutcome::Due).collect();
    past.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.at));
    past
}

/// Returns the next due times: at most [`DUE_EACH_MAX`] per schedule, so that a schedule that is
/// due each minute does not hide the others. The number is the count of omitted ones.
fn due_entries(calendar: &FleetCalendar) -> Vec<(&ScheduleTimeline, &TimelineEntry, usize)> {
    let mut due = Vec::new();
    for lane in &calendar.lanes {
        let all: Vec<_> =
            lane.marks.iter().filter(|entry| entry.what == TimelineOutcome::Due).collect();
        for (place, entry) in all.iter().take(DUE_EACH_MAX).enumerate() {
            // The last listed entry carries the number of the others.
            let rest = if place + 1 == DUE_EACH_MAX { all.len() - DUE_EACH_MAX } else { 0 };
            due.push((lane, *entry, rest));
        }
    }
    due.sort_by_key(|(_, entry, _)| entry.at);
    due
}

fn entry_lists(frame: &PageFrame, calendar: &FleetCalendar) -> Markup {
    let (past, due) = (past_entries(calendar), due_entries(calendar));
    html! {
        div.grid {
            section.card #coming data-live aria-labelledby="h-coming" {
                header { h2 #h-coming { "Coming" } }
                @if due.is_empty() { p.empty.small { "Nothing is due within a day." } }
                ul.list role="list" {
                    @for (lane, entry, rest) in due.iter().take(LISTED_MAX) { (entry_item(frame, lane, entry, *rest)) }
                }
            }
            section.card #past data-live aria-labelledby="h-past" {
                header { h2 #h-past { "Past" } }
                @if past.is_empty() { p.empty.small { "Nothing was due within a day." } }
                ul.list role="list" {
                    @for (lane, entry) in past.iter().take(LISTED_MAX) { (entry_item(frame, lane, entry, 0)) }
                }
            }
        }
    }
}

fn entry_item(
    frame: &PageFrame,
    lane: &ScheduleTimeline,
    entry: &TimelineEntry,
    rest: usize,
) -> Markup {
    html! {
        li data-row {
            div.line {
                @match &entry.what {
                    TimelineOutcome::Ran { status: Some(found), .. } => { (status_badge(found.as_str())) }
                    // The job may have been removed by retention.
                    TimelineOutcome::Ran { status: None, .. } => { (status_badge("started")) }
                    TimelineOutcome::Skipped { .. } => { (status_badge("skipped")) }
                    TimelineOutcome::Due => { span.status { "due" } }
                }
                (agent_link(&lane.agent))
                span.muted { (isolated_text(&lane.schedule)) }
                span.end.muted.nowrap { (relative_time(frame, entry.at)) }
            }
            @match &entry.what {
                TimelineOutcome::Ran { job, .. } => { p.small { (job_link(job)) } }
                TimelineOutcome::Skipped { count, last, reason } => {
                    p.small.muted { (skip_reason(*count, entry.at, *last, reason)) }
                }
                TimelineOutcome::Due => {
                    p.small.muted {
                        (format_exact(frame, entry.at))
                        @if rest > 0 { ", then " @if lane.more_due { "more than " } (rest) " more within a day" }
                    }
                }
            }
        }
    }
}

/// Returns the reason for which due times created no job.
fn skip_reason(count: u64, first: Timestamp, last: Timestamp, reason: &str) -> String {
    // An unknown reason of a newer daemon is shown as it is.
    let because = match reason {
        "missed" => "no daemon was running",
        "made_up" => "a later one replaces it",
        "too_many" => "more were missed than are caught up",
        "overlap" => "the previous one was still running",
        "budget" => "the budget was used up",
        "queue_full" => "the queue was full",
        "nothing_found" => "the search on GitHub found nothing new",
        "unreachable" => "the search on GitHub failed",
        "disabled" => "it was disabled",
        other => other,
    };
    match count {
        1 => because.to_owned(),
        count => {
            format!(
                "{count} within {}: {because}",
                format_span(last.as_second() - first.as_second())
            )
        }
    }
}
