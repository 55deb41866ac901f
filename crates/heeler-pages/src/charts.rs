//! Charts: SVG bars in the colours of the page, each with its figures as a table.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};

use heeler_model::JobStatus;
use heeler_query::charts::{DailyCost, HourlyJobCounts, JobDuration};

use crate::components::{format_clock_duration, format_grouped, format_usd, visible_line};

/// Height of a chart in its own units; it is stretched to its place.
const HEIGHT: f64 = 100.0;

/// Width of one bar with its margin.
const STEP: f64 = 10.0;

/// Width of one bar.
const BAR: f64 = 7.4;

/// Smallest number of places in the chart of job durations.
const DURATIONS_MIN: usize = 24;

/// Renders jobs per hour.
pub fn runs_chart(hours: &[HourlyJobCounts], zone: &TimeZone) -> Markup {
    // At least one, so that a chart of zeros does not divide by zero.
    let most = hours.iter().map(HourlyJobCounts::total).max().unwrap_or(0).max(1) as f64;
    let total: i64 = hours.iter().map(HourlyJobCounts::total).sum();
    let failed: i64 = hours.iter().map(|hour| hour.failed).sum();
    let jobs = if total == 1 { "job" } else { "jobs" };
    let words = format!("{total} {jobs} in {} hours, {failed} failed", hours.len());
    let bars = html! {
        @for (place, hour) in hours.iter().enumerate() {
            g {
                title { (format_hour(hour.from, zone)) ": " (describe_hour(hour)) }
                (draw_bar(place, most, &[
                    ("bar", hour.completed as f64),
                    ("bar bad", hour.failed as f64),
                    ("bar rest", hour.others as f64),
                ]))
            }
        }
    };
    let rows = hours.iter().map(|hour| [format_hour(hour.from, zone), describe_hour(hour)]);
    render_figure(&ChartFigure {
        summary: &words,
        width: STEP * hours.len() as f64,
        end_labels: [
            &hours.first().map(|hour| format_hour(hour.from, zone)).unwrap_or_default(),
            "now",
        ],
        column_titles: ["Hour", "Jobs"],
        bars,
        rows: rows.collect(),
    })
}

/// Renders costs per day.
pub fn cost_chart(days: &[DailyCost]) -> Markup {
    let most = days.iter().map(|day| day.cost_usd).fold(0.0, f64::max).max(1e-6);
    let total: f64 = days.iter().map(|day| day.cost_usd).sum();
    let words = format!("{} in {} days", format_usd(total), days.len());
    let bars = html! {
        @for (place, day) in days.iter().enumerate() {
            g {
                title { (day.day) ": " (format_usd(day.cost_usd)) }
                (draw_bar(place, most, &[("bar", day.cost_usd)]))
            }
        }
    };
    let rows = days.iter().map(|day| [day.day.to_string(), format_usd(day.cost_usd)]);
    let first = days.first().map(|day| day.day.strftime("%b %-d").to_string()).unwrap_or_default();
    render_figure(&ChartFigure {
        summary: &words,
        width: STEP * days.len() as f64,
        end_labels: [&first, "today"],
        column_titles: ["Day", "Cost"],
        bars,
        rows: rows.collect(),
    })
}

/// Renders the durations of the last jobs.
pub fn durations_chart(jobs: &[JobDuration]) -> Markup {
    let longest = jobs.iter().map(|job| job.seconds).fold(0.0, f64::max).max(0.1);
    let mut sorted: Vec<f64> = jobs.iter().map(|job| job.seconds).collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let (count, median, most) =
        (jobs.len(), format_clock_duration(median), format_clock_duration(longest));
    let words = match count {
        1 => format!("one job: {most}"),
        _ => format!("last {count} jobs: median {median}, longest {most}"),
    };
    // A few jobs are drawn at the right end, not stretched over the chart.
    let width = jobs.len().max(DURATIONS_MIN);
    let bars = html! {
        @for (place, job) in (width - jobs.len()..).zip(jobs) {
            g {
                title { (visible_line(&job.agent)) ": " (format_clock_duration(job.seconds)) ", " (job.status.as_str()) }
                (draw_bar(place, longest, &[(bar_class(job.status), job.seconds)]))
            }
        }
    };
    let rows = jobs.iter().map(|job| {
        [
            visible_line(&job.agent),
            format!("{}, {}", format_clock_duration(job.seconds), job.status.as_str()),
        ]
    });
    render_figure(&ChartFigure {
        summary: &words,
        width: STEP * width as f64,
        end_labels: ["older", "newest"],
        column_titles: ["Agent", "Took"],
        bars,
        rows: rows.collect(),
    })
}

fn bar_class(status: JobStatus) -> &'static str {
    if status == JobStatus::Failed { "bar bad" } else { "bar" }
}

/// Draws one bar of several stacked parts. A part above zero is always large enough to be visible.
fn draw_bar(place: usize, most: f64, parts: &[(&str, f64)]) -> Markup {
    let x = place as f64 * STEP + (STEP - BAR) / 2.0;
    let mut y = HEIGHT;
    html! {
        // The whole column shows the tooltip.
        rect x=(format_number(place as f64 * STEP)) y="0" width=(format_number(STEP)) height=(format_number(HEIGHT)) fill="transparent" {}
        @for (class, value) in parts {
            @if *value > 0.0 {
                @let height = (value / most * HEIGHT).max(1.5);
                ({ y -= height; maud::PreEscaped("") })
                rect class=(class) x=(format_number(x)) y=(format_number(y.max(0.0))) width=(format_number(BAR)) height=(format_number(height)) {}
            }
        }
    }
}

fn format_number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

struct ChartFigure<'a> {
    summary: &'a str,
    width: f64,
    end_labels: [&'a str; 2],
    column_titles: [&'a str; 2],
    bars: Markup,
    rows: Vec<[String; 2]>,
}

fn render_figure(figure: &ChartFigure<'_>) -> Markup {
    let ChartFigure { summary: words, width, end_labels: ends, column_titles: heads, bars, rows } =
        figure;
    html! {
        figure.chart {
            svg role="img" aria-label=(words) viewBox={ "0 0 " (format_number(*width)) " " (format_number(HEIGHT)) }
                // Bars are stretched to the width of the card. There is no text in them that this
                // would distort.
                preserveAspectRatio="none" {
                line.axis x1="0" x2=(format_number(*width)) y1=(format_number(HEIGHT)) y2=(format_number(HEIGHT)) {}
                (bars)
            }
            figcaption { span { (ends[0]) } span { (words) } span { (ends[1]) } }
            details {
                summary { "Figures" }
                div.scroll tabindex="0" role="region" aria-label=(words) {
                    table {
                        thead { tr { th scope="col" { (heads[0]) } th scope="col" { (heads[1]) } } }
                        tbody {
                            @for [name, value] in rows {
                                tr { th scope="row" { (name) } td { (value) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn format_hour(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%H:%M").to_string()
}

fn describe_hour(hour: &HourlyJobCounts) -> String {
    let mut parts = vec![format!("{} completed", format_grouped(hour.completed))];
    if hour.failed > 0 {
        parts.push(format!("{} failed", format_grouped(hour.failed)));
    }
    if hour.others > 0 {
        parts.push(format!("{} others", format_grouped(hour.others)));
    }
    parts.join(", ")
}
