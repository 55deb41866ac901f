//! Page that compares two jobs: their facts side by side, with the ones that differ marked.

use heeler_query::job_comparison::{COMPARED_ROWS_MAX, ComparedJob};
use heeler_query::jobs::JobSummary;
use maud::{Markup, html};

use crate::components::{
    activity_styles, agent_link, encode_path, format_clock_duration, format_grouped, format_usd,
    job_link, job_status_badge, optional_relative_time, session_link, truncate_text, visible_line,
};
use crate::{DashboardSection, PageFrame, markdown};

/// Bytes of a prompt or an answer that the page shows.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Data of the page.
#[derive(Debug)]
pub struct JobComparisonView {
    pub job: ComparedJob,
    /// The other job; `None` until one is chosen.
    pub other: Option<ComparedJob>,
    /// Recent jobs of the same agent, to choose from.
    pub candidates: Vec<JobSummary>,
}

pub fn page(frame: &PageFrame, view: &JobComparisonView) -> Markup {
    let id = &view.job.job.item.id;
    let home = encode_path("/jobs", &[id]);
    let content = html! {
        (activity_styles())
        p.crumbs { a href="/jobs" { "Jobs" } " › " a.mono href=(home) { (id) } " › compare" }
        div.head { h1 { "Compare jobs" } }
        (choice_form(view, &home))
        @match &view.other {
            Some(other) => { (comparison(frame, &view.job, other)) }
            None => p.empty { "Choose the job to compare with." },
        }
    };
    frame.page(DashboardSection::Jobs, "Compare jobs", content)
}

fn choice_form(view: &JobComparisonView, home: &str) -> Markup {
    let own = &view.job.job.item.id;
    let chosen = view.other.as_ref().map(|other| other.job.item.id.as_str());
    html! {
        form.filters action={ (home) "/compare" } role="search" aria-label="Choose the other job" {
            div.field {
                label for="f-with" { "Compare with job" }
                input #f-with name="with" list="jobs-of-agent" required placeholder="ID, or its end" value=[chosen];
                datalist #jobs-of-agent {
                    @for job in view.candidates.iter().filter(|job| job.id != *own) {
                        option value=(job.id) { (job.status.as_str()) " · " (visible_line(job.title.as_deref().unwrap_or_default())) }
                    }
                }
            }
            button.button { "Compare" }
        }
    }
}

/// Fact of both jobs.
struct ComparedFact {
    name: &'static str,
    left: Markup,
    right: Markup,
    is_different: bool,
}

impl ComparedFact {
    fn new<T: PartialEq>(
        name: &'static str,
        (left, right): (&ComparedJob, &ComparedJob),
        value: impl Fn(&ComparedJob) -> T,
        shown: impl Fn(&T) -> Markup,
    ) -> ComparedFact {
        let (left, right) = (value(left), value(right));
        let is_different = left != right;
        ComparedFact { name, left: shown(&left), right: shown(&right), is_different }
    }
}

fn comparison(frame: &PageFrame, left: &ComparedJob, right: &ComparedJob) -> Markup {
    let facts = facts(left, right);
    let both = [left, right];
    html! {
        section.card aria-labelledby="h-facts" {
            header { h2 #h-facts { "Facts" } span.muted { "Values that differ are marked." } }
            div.scroll {
                table.compared {
                    thead { tr {
                        th scope="col" { span.visually-hidden { "Fact" } }
                        @for it in both { th scope="col" { (job_link(&it.job.item.id)) } }
                    } }
                    tbody {
                        tr {
                            th scope="row" { "Started" }
                            @for it in both { td { (optional_relative_time(frame, it.job.item.started_at)) } }
                        }
                        @for fact in &facts {
                            tr.differs[fact.is_different] {
                                th scope="row" { (fact.name) @if fact.is_different { span.visually-hidden { " (differs)" } } }
                                td { (fact.left) }
                                td { (fact.right) }
                            }
                        }
                        tr {
                            th scope="row" { "Session" }
                            @for it in both { td {
                                @if let Some(id) = &it.job.session {
                                    (session_link(id)) " · " a href=(encode_path("/sessions", &[id, "diff"])) { "file changes" }
                                } @else { "–" }
                            } }
                        }
                    }
                }
            }
            @if left.is_cut || right.is_cut {
                p.note.pad { "Tools are counted in the last " (format_grouped(COMPARED_ROWS_MAX as i64)) " rows of a transcript." }
            }
        }
        (texts("h-prompts", "Prompt", both.map(|it| it.job.prompt.as_deref()), |text| html! { pre.code { (text) } }))
        (texts("h-answers", "Last answer", both.map(|it| it.last_text.as_deref()), markdown))
    }
}

fn facts(left: &ComparedJob, right: &ComparedJob) -> Vec<ComparedFact> {
    let both = (left, right);
    let number =
        |number: &Option<i64>| html! { (number.map_or_else(|| "–".to_owned(), format_grouped)) };
    let text = |text: &Option<String>| html! { (text.as_deref().map_or_else(|| "–".to_owned(), visible_line)) };
    vec![
        ComparedFact::new("Agent", both, |it| it.job.item.agent.clone(), |agent| agent_link(agent)),
        ComparedFact::new(
            "Status",
            both,
            |it| (it.job.item.status, it.job.item.dead),
            |(status, is_dead)| job_status_badge(status.as_str(), *is_dead),
        ),
        ComparedFact::new(
            "Ended by",
            both,
            |it| it.job.item.exit_reason.map(|reason| reason.as_str().to_owned()),
            text,
        ),
        ComparedFact::new("Error", both, |it| it.job.error.clone(), text),
        ComparedFact::new("Denied tools", both, |it| it.job.item.denied.clone(), text),
        ComparedFact::new("Models", both, models, text),
        ComparedFact::new(
            "Took",
            both,
            |it| it.job.item.duration_seconds,
            |took| html! { (took.map_or_else(|| "–".to_owned(), format_clock_duration)) },
        ),
        ComparedFact::new(
            "Cost",
            both,
            |it| it.job.item.cost_usd,
            |cost| html! { (cost.map_or_else(|| "–".to_owned(), format_usd)) },
        ),
        ComparedFact::new("Turns", both, |it| it.job.usage.num_turns, number),
        ComparedFact::new("Input tokens", both, input_tokens, number),
        ComparedFact::new("Output tokens", both, |it| it.job.usage.output_tokens, number),
        ComparedFact::new("Tools", both, tools, text),
        ComparedFact::new("Working directory", both, |it| it.job.working_directory.clone(), text),
        ComparedFact::new("Host", both, |it| it.job.item.host.clone(), text),
    ]
}

fn models(it: &ComparedJob) -> Option<String> {
    let names: Vec<&str> = it.job.usage.per_model.keys().map(String::as_str).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Returns all input tokens, including those of the cache.
fn input_tokens(it: &ComparedJob) -> Option<i64> {
    let usage = &it.job.usage;
    let parts =
        [usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens];
    parts.iter().any(Option::is_some).then(|| parts.iter().flatten().sum())
}

fn tools(it: &ComparedJob) -> Option<String> {
    let counts: Vec<String> =
        it.tools.iter().map(|(tool, count)| format!("{tool} {count}×")).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

/// Renders a text of both jobs; once if it is the same.
fn texts(
    id: &str,
    title: &str,
    [left, right]: [Option<&str>; 2],
    shown: impl Fn(&str) -> Markup,
) -> Markup {
    let text = |text: Option<&str>| match text.filter(|text| !text.trim().is_empty()) {
        Some(text) => shown(&truncate_text(text, TEXT_BYTES_MAX)),
        None => html! { p.muted { "None." } },
    };
    html! {
        section.card aria-labelledby=(id) {
            header {
                h2 id=(id) { (title) }
                @if left == right { span.muted { "the same in both jobs" } }
            }
            @if left == right {
                div.pad { (text(left)) }
            } @else {
                div.split.even.pad { div { (text(left)) } div { (text(right)) } }
            }
        }
    }
}
