//! Session pages: the list as a tree of forks, and one session with its messages.

use heeler_config::RuntimeType;
use heeler_model::{SessionStatus, parse_iso};
use heeler_query::messages::{MessageDetails, MessagePage};
use heeler_query::session_holder::SessionHolderDetails;
use heeler_query::sessions::{SessionDetails, SessionPage, SessionSummary};
use maud::{Markup, html};
use serde_json::Value;

use crate::components::{
    activity_styles, agent_field, agent_link, clamp_line, empty_notice, encode_path,
    format_grouped, isolated_text, job_link, relative_time, session_link, state_field,
    status_badge, url_with_params, visible_line,
};
use crate::job::{end_button, newest_link, older_link};
use crate::transcript::message_blocks;
use crate::{DashboardSection, PageFrame};

/// Jobs of a session that the page links.
const JOBS_SHOWN: usize = 5;
/// Deepest level of the tree that is drawn.
const DEPTH_MAX: usize = 8;

/// Filters of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionsView {
    /// Only sessions of this agent.
    pub agent: String,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Forks follow their source.
    pub is_tree: bool,
    /// Only sessions last used before this one.
    pub before: String,
    /// All agents, for the selection.
    pub agents: Vec<String>,
}

impl SessionsView {
    fn is_filtered(&self) -> bool {
        !self.agent.is_empty() || self.status.is_some()
    }

    fn address(&self, before: &str) -> String {
        let status = self.status.map_or("", SessionStatus::as_str);
        // The tree is the default, so its address has no parameter.
        let view = if self.is_tree { "" } else { "list" };
        url_with_params(
            "/sessions",
            &[("agent", &self.agent), ("status", status), ("view", view), ("before", before)],
        )
    }
}

/// Returns the page of sessions.
pub fn page(frame: &PageFrame, view: &SessionsView, found: &SessionPage) -> Markup {
    let content = html! {
        (activity_styles())
        div.head {
            h1 { "Sessions" }
            span.muted { (format_grouped(found.total)) @if found.total == 1 { " session" } @else { " sessions" } }
        }
        (filters(view))
        section.card #list data-live aria-label="Sessions" {
            @if found.sessions.is_empty() { (empty_list(view)) } @else { (table(frame, &found.sessions)) }
        }
        @if !view.before.is_empty() || found.next.is_some() {
            nav.pager aria-label="Pages" {
                @if view.before.is_empty() { span {} } @else { a.button href=(view.address("")) { "Newest" } }
                @if let Some(next) = &found.next { a.button rel="next" href=(view.address(next)) { "Older" } }
            }
        }
    };
    frame.page(DashboardSection::Sessions, "Sessions", content)
}

fn empty_list(view: &SessionsView) -> Markup {
    match view.is_filtered() {
        true => empty_notice(
            "No matching sessions",
            html! { a href="/sessions" { "Show all sessions" } },
        ),
        false => empty_notice(
            "No sessions",
            html! { "A session is a conversation with an agent; an agent's first job starts one." },
        ),
    }
}

fn filters(view: &SessionsView) -> Markup {
    let chosen = view.status.map_or("", SessionStatus::as_str);
    html! {
        form.filters data-auto role="search" aria-label="Filter sessions" {
            (agent_field(&view.agents, &view.agent))
            (state_field(SessionStatus::ALL.iter().map(|one| one.as_str()), chosen))
            div.field {
                label for="f-view" { "Order" }
                select #f-view name="view" {
                    option value="" selected[view.is_tree] { "Forks below their source" }
                    option value="list" selected[!view.is_tree] { "Last used first" }
                }
            }
            button.button { "Show" }
            @if view.is_filtered() { a.button.quiet href="/sessions" { "Show all" } }
        }
    }
}

/// Returns sessions as a table.
pub fn table(frame: &PageFrame, sessions: &[SessionSummary]) -> Markup {
    html! {
        div.scroll {
            table.lines {
                thead { tr {
                    th scope="col" { "Session" } th.fit scope="col" { "State" }
                    th scope="col" { "Agent" } th.num.opt2 scope="col" { "Messages" }
                    th.num.opt scope="col" { "Tokens" } th.num.opt scope="col" { "Jobs" }
                    th.num scope="col" { "Last used" }
                } }
                tbody {
                    @for one in sessions {
                        tr data-row {
                            td.id { (name(one)) }
                            td.fit { (status_badge(one.status.as_str())) }
                            td { (agent_link(&one.agent_id)) }
                            td.num.opt2 { (format_grouped(one.message_count)) }
                            td.num.opt { (format_grouped(one.token_estimate)) }
                            td.num.opt { (format_grouped(one.job_count)) }
                            td.num { (relative_time(frame, one.last_active_at)) }
                        }
                    }
                }
            }
        }
    }
}

fn name(session: &SessionSummary) -> Markup {
    // Deeper levels would leave no room for the name.
    let depth = session.depth.unwrap_or(0).min(DEPTH_MAX);
    // A fork of an old record may lack its message.
    let relation = match (&session.parent, session.forked_at_message, &session.continues) {
        (Some(_), Some(at), _) => Some(format!("fork at {at}")),
        (Some(_), None, _) => Some("fork".to_owned()),
        (None, _, Some(_)) => Some("continued".to_owned()),
        (None, _, None) => None,
    };
    html! {
        span.tree {
            // Drawn for the eye only: a screen reader reads the badge.
            @if depth > 0 { span.steps aria-hidden="true" { ("  ".repeat(depth - 1)) "└" } }
            (session_link(&session.id))
            @if let Some(relation) = relation { span.badge { (relation) } }
        }
        @if let Some(title) = &session.title { div.clamp.title { (clamp_line(title)) } }
    }
}

/// Data of the page of a session.
#[derive(Debug)]
pub struct SessionView {
    pub session: SessionDetails,
    /// Last messages; `None` if there are none yet.
    pub messages: Option<MessagePage>,
    /// Job or process that uses the session at present.
    pub holder: Option<SessionHolderDetails>,
}

/// Returns the page of a session.
pub fn session_page(frame: &PageFrame, view: &SessionView) -> Markup {
    let id = &view.session.item.id;
    let content = html! {
        (activity_styles())
        div.stack #head data-live { (head(frame, view)) }
        (messages_card(frame, view))
    };
    frame.page(DashboardSection::Sessions, id, content)
}

fn head(frame: &PageFrame, view: &SessionView) -> Markup {
    let SessionView { session, holder, messages } = view;
    let item = &session.item;
    let job = holder.as_ref().and_then(|it| it.job.as_deref()).unwrap_or_default();
    let total = messages.as_ref().map_or(0, |page| page.total);
    html! {
        p.crumbs { a href="/sessions" { "Sessions" } " › " span.mono { (item.id) } }
        div.head data-at-work=(job) data-messages=(total) {
            h1 { (agent_link(&item.agent_id)) " · " span.mono { (item.id) } }
            (status_badge(item.status.as_str()))
            // A session without messages has nothing to fork, compare or export.
            @if frame.can_operate() && total > 0 {
                div.tools {
                    @if !is_of_command(item) {
                        button.button type="button" data-action={ "POST " (encode_path("/api/v1/sessions", &[&item.id])) "/fork" }
                            data-body="{}" data-go="/sessions/{id}" { "Fork" }
                    }
                    a.button href={ (encode_path("/sessions", &[&item.id])) "/diff" } { "File changes" }
                    a.button href={ (encode_path("/api/v1/sessions", &[&item.id])) "/export" } download { "Export" }
                }
            }
        }
        @if let Some(title) = &item.title { p.title { (visible_line(title)) } }
        @if let Some(holder) = holder { (holder_notice(holder)) }
        section.card aria-label="About the session" { (facts(frame, session, total)) }
    }
}

/// Returns true for the session of a command, which has no conversation to continue or to fork.
fn is_of_command(item: &SessionSummary) -> bool {
    item.runtime == RuntimeType::Command.as_str()
}

fn holder_notice(holder: &SessionHolderDetails) -> Markup {
    html! {
        p.banner role="note" {
            span {
                strong { "In use" }
                @if let Some(job) = &holder.job { ": job " (job_link(job)) }
                @if let Some(process) = &holder.process { span.muted { " · " (visible_line(process)) } }
            }
        }
    }
}

fn facts(frame: &PageFrame, session: &SessionDetails, total: u64) -> Markup {
    let item = &session.item;
    // While a job runs, the record has the count from before the job.
    let count = item.message_count.max(total as i64);
    html! {
        dl.facts.pairs.pad {
            dt { "Last used" } dd { (relative_time(frame, item.last_active_at)) }
            dt { "Created" } dd { (relative_time(frame, item.created_at)) " · " (item.mode.as_str()) " · " (visible_line(&item.runtime)) }
            dt { "Size" } dd.num { (format_grouped(count)) " messages" @if item.token_estimate > 0 { " · about " (format_grouped(item.token_estimate)) " tokens" } }
            @if let Some(parent) = &item.parent {
                dt { "Forked from" }
                dd { (session_link(parent)) @if let Some(at) = item.forked_at_message { " after message " (at) } }
            }
            @if let Some(before) = &item.continues { dt { "Continues" } dd { (session_link(before)) } }
            @if !session.continued_by.is_empty() { dt { "Continued by" } dd { (links(&session.continued_by)) } }
            @if !session.forks.is_empty() { dt { "Forks" } dd { (links(&session.forks)) } }
            @if !item.jobs.is_empty() { dt { "Jobs" } dd { (jobs(item)) } }
            @if let Some(folder) = &item.working_directory { dt { "Working directory" } dd.mono { (visible_line(folder)) } }
            @if let Some(folder) = &item.workspace { dt { "Worktree" } dd.mono { (visible_line(folder)) } }
            @if let Some(host) = &session.host { dt { "Host" } dd { (visible_line(host)) @if let Some(moved) = session.last_move.as_ref().filter(|it| it.seconds_left.is_some()) { ", moves to " (visible_line(&moved.target)) } } }
            @if let Some(channel) = &item.channel_id { dt { "Channel" } dd { (isolated_text(channel)) } }
            @if let Some(command) = &session.resume_command {
                dt { "Resume in a terminal" }
                dd { code #resume { (visible_line(command)) } " " button.button.quiet.small type="button" data-copy="resume" { "Copy" } }
            }
        }
    }
}

fn links(sessions: &[String]) -> Markup {
    html! { @for (at, id) in sessions.iter().enumerate() { @if at > 0 { " " } (session_link(id)) } }
}

fn jobs(item: &SessionSummary) -> Markup {
    // The newest jobs are the interesting ones, and the list may be long.
    let newest = item.jobs.iter().rev().take(JOBS_SHOWN);
    html! {
        @for (at, id) in newest.enumerate() { @if at > 0 { " " } (job_link(id)) }
        @if item.jobs.len() > JOBS_SHOWN { span.muted { " of " (item.jobs.len()) } }
    }
}

fn messages_card(frame: &PageFrame, view: &SessionView) -> Markup {
    let id = &view.session.item.id;
    let home = encode_path("/sessions", &[id]);
    let holder = view.holder.as_ref().filter(|it| it.job.is_some());
    let job = holder.and_then(|it| it.job.as_deref());
    html! {
        section.card.talk-log aria-labelledby="h-log" data-session data-transcript={ (home) "/messages.html" }
            // The stream continues after the rows that are already in the messages.
            data-follow=[job] data-from=(holder.map_or(0, |it| it.lines)) {
            header { h2 #h-log { "Messages" } }
            div.rows data-rows tabindex="0" role="group" aria-label="Messages" {
                (older_link(&home, view.messages.as_ref().and_then(|page| page.next)))
                @match &view.messages {
                    Some(page) => { (messages_fragment(frame, page)) (newest_link(&home, newer_message(page))) }
                    // The script needs a page element, also if it is empty.
                    None => { div data-page data-total="0" {} }
                }
                @if view.session.is_unbegun { p.empty.small { "This fork has no messages of its own yet: its first job copies the history." } }
            }
            (end_button())
            @if frame.can_operate() && !is_of_command(&view.session.item) { (message_form(&view.session.item)) }
        }
    }
}

fn message_form(item: &SessionSummary) -> Markup {
    let agent = visible_line(&item.agent_id);
    html! {
        form.box data-talk={ (encode_path("/api/v1/sessions", &[&item.id])) "/messages" } {
            div.field {
                label for="say" { "Message to " (agent) }
                textarea #say name="prompt" rows="2" required aria-keyshortcuts="Control+Enter" {}
            }
            div.row {
                span.note { "Starts a job in this session; " kbd { "Ctrl" } " " kbd { "Enter" } " sends." }
                button.button.primary.end { "Send" }
            }
        }
    }
}

/// Returns the last message of a page if there are newer ones.
fn newer_message(page: &MessagePage) -> Option<u64> {
    // External messages that are not imported have no number.
    let last = page.messages.iter().rev().find_map(|message| message.number);
    last.filter(|last| *last < page.total)
}

/// Returns messages as a fragment of the page.
pub fn messages_fragment(frame: &PageFrame, page: &MessagePage) -> Markup {
    html! {
        div data-page data-previous=[page.next] data-next=[newer_message(page)] data-total=(page.total) {
            @for one in &page.messages { (message(frame, &page.session, one)) }
        }
    }
}

fn message(frame: &PageFrame, session: &str, message: &MessageDetails) -> Markup {
    let is_agent = message.is_from_agent();
    let (speaker, class) = if is_agent { ("agent", "of-agent") } else { ("you", "of-you") };
    let at = message.timestamp.as_deref().and_then(parse_iso);
    let number = message.number;
    html! {
        article.entry.(class).forgotten[!message.in_context] id=[number.map(|it| format!("message-{it}"))]
            data-number=[number] {
            header {
                span.who { (speaker) }
                // The script replaces the clock by the time in the browser's zone.
                @if let Some(at) = at { time data-clock datetime=(at) { (at.strftime("%H:%M:%S UTC")) } }
                @if message.from_outside { span.badge { "external" } }
                @if !message.in_context { span.badge { "not in the agent's context" } }
                // The reason is shown only to a person who could fork.
                @if let Some(why) = message.why_unsafe.as_ref().filter(|_| number.is_some() && !message.safe_cut && frame.can_operate()) {
                    span.no-fork { "No fork here: " (why) }
                }
                @if let Some(number) = number { a.end.muted href={ "#message-" (number) } aria-label={ "Message " (number) } { (number) } }
            }
            @if message.rows_left_out > 0 { p.note { (message.rows_left_out) " rows are left out here." } }
            (message_blocks(&message.content, |id| tool_result(message, id)))
            @for error in &message.errors { p.note { "Error: " (isolated_text(error)) } }
            (message_actions(frame, session, message))
        }
    }
}

/// Returns if a tool call failed, and its result.
fn tool_result<'a>(message: &'a MessageDetails, call: &str) -> Option<(bool, &'a Value)> {
    let tool = message.tools.iter().find(|tool| tool.id.as_deref() == Some(call))?;
    tool.result.as_ref().map(|result| (result.is_error, &result.content))
}

/// Renders the actions after a message: fork, and file changes.
fn message_actions(frame: &PageFrame, session: &str, message: &MessageDetails) -> Markup {
    // A message that is not imported cannot be a fork point.
    let Some(number) = message.number else { return Markup::default() };
    let home = encode_path("/sessions", &[session]);
    let fork = format!("POST {}/fork", encode_path("/api/v1/sessions", &[session]));
    html! {
        div.after {
            @if message.safe_cut && frame.can_operate() {
                button.button.small type="button" data-action=(fork) data-go="/sessions/{id}"
                    data-body=(format!("{{\"atMessage\":{number}}}"))
                    aria-label={ "Fork from here, after message " (number) } { "Fork from here" }
                // Without a snapshot the files would be the current ones, so the choice is not
                // offered.
                @if message.snapshot.is_some() {
                    button.button.small type="button" data-action=(fork) data-go="/sessions/{id}"
                        data-body=(format!("{{\"atMessage\":{number},\"workspace\":true}}"))
                        aria-label={ "Fork with files as they were after message " (number) } { "Fork with files" }
                }
            }
            @if message.snapshot.is_some() {
                a href={ (home) "/diff?from=" (number) } aria-label={ "changes since message " (number) } { "changes since" }
                a href={ (home) "/diff?to=" (number) } aria-label={ "changes until message " (number) } { "changes until" }
            }
        }
    }
}
