//! Tests of pages: untrusted text is inert, and times and figures are readable.

mod activity;

use expect_test::expect;
use heeler_model::JobStatus;
use heeler_query::charts::{DailyCost, FleetCharts, HourlyJobCounts, JobDuration};
use heeler_query::chat_links::ChatLinkSummary;
use heeler_query::config_change::{ChangedFileSummary, ConfigChangeSummary};
use heeler_query::jobs::{JobPage, JobSummary};
use heeler_query::overview::{FleetActivity, FleetOverview, RunningJobSummary, UpcomingSchedule};
use heeler_query::search::{SearchHitSummary, SearchPage};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::components::{
    CLAMPED_CHARS_MAX, clamp_line, encode_segment, format_clock, format_clock_duration,
    format_grouped, format_relative, format_span, format_usd, highlight_matches, inline_code,
    visible_line,
};
use crate::search::{self, SearchView};
use crate::transcript::{row_html, row_summary};
use crate::{
    NavigationCounts, PageFrame, ViewerScope, assets, jobs, markdown, markdown_line, overview,
};

/// Attempts to inject active content into a page.
pub(crate) const EVIL: [&str; 14] = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "\"><script>alert(1)</script>",
    "' onmouseover='alert(1)",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a]( data:text/html;base64,PHNjcmlwdD4=)",
    "![a](https://example.com/track.png)",
    "<a href=\"javascript:alert(1)\">a</a>",
    "<iframe src=//example.com></iframe>",
    "<style>body{display:none}</style>",
    "[a](//example.com) <form action=/api/v1/jobs><button>x</button></form>",
    "```html\n<script>alert(1)</script>\n```\n<!-- --><base href=//example.com>",
];

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(crate) fn frame() -> PageFrame {
    PageFrame {
        fleet: "test".to_owned(),
        user_name: "ann".to_owned(),
        viewer_scope: ViewerScope::Operate,
        csrf_token: Some("c".to_owned()),
        counts: NavigationCounts { running: 1, waiting: 0, failed: 2, approvals: 0 },
        now: at(0),
        zone: TimeZone::UTC,
        version: "1.2.3".to_owned(),
    }
}

fn job(text: &str) -> JobSummary {
    JobSummary {
        id: "job-2026-11-15-abc123".to_owned(),
        agent: text.to_owned(),
        schedule: Some(text.to_owned()),
        status: JobStatus::Failed,
        dead: false,
        pulling: false,
        trigger_type: text.to_owned(),
        asked_at: at(-60),
        started_at: Some(at(-59)),
        finished_at: Some(at(-1)),
        duration_seconds: Some(58.0),
        exit_reason: None,
        cost_usd: Some(0.5),
        session_id: None,
        summary: Some(text.to_owned()),
        title: Some(text.to_owned()),
        denied: Some(text.to_owned()),
        host: Some(text.to_owned()),
        error: Some(text.to_owned()),
    }
}

/// Fails if HTML has active content; its tags are parsed as a browser does.
#[track_caller]
pub(crate) fn is_inert(html: &str) {
    for tag in html.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap().to_lowercase();
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        let is_ours = tag.contains(" src=\"/assets/");
        assert!(!matches!(name, "iframe" | "base" | "style" | "object" | "embed"), "<{tag}>");
        assert!(!matches!(name, "script" | "img") || is_ours, "<{tag}>");
        for start in [" onerror=", " onload=", " onclick=", " onmouseover=", " style="] {
            let outside = tag.split('"').step_by(2).any(|part| part.contains(start));
            assert!(!outside, "<{tag}>");
        }
        for start in ["href=\"javascript:", "href=\"data:", "href=\"//", "src=\"http"] {
            assert!(!tag.replace(' ', "").contains(start), "<{tag}>");
        }
    }
}

#[test]
fn markdown_of_agents_cannot_act() {
    for text in EVIL {
        let html = markdown(text).into_string();
        is_inert(&html);
        assert!(!html.contains("<form") && !html.contains("<button"), "{html}");
    }
    let link = markdown("[a](https://example.com/)").into_string();
    assert!(link.contains(r#"rel="noopener noreferrer nofollow""#), "{link}");
}

#[test]
fn markdown_is_shown_with_headings_below_those_of_the_page() {
    let text =
        "# One\n\n- [x] done\n- *a* `b`\n\n|a|\n|-|\n|1|\n\n![cat](https://example.com/c.png)";
    expect![[r#"
        <div class="prose"><h3>One</h3>
        <ul>
        <li>☑ done</li>
        <li><em>a</em> <code>b</code></li>
        </ul>
        <table><thead><tr><th>a</th></tr></thead><tbody>
        <tr><td>1</td></tr>
        </tbody></table>
        <p><a href="https://example.com/c.png" rel="noopener noreferrer nofollow">cat</a></p>
        </div>"#]]
    .assert_eq(&markdown(text).into_string());
}

#[test]
fn in_a_line_markdown_is_what_it_says_without_its_signs() {
    let text = "## Report\nAll is **well**: `3` things, see [the site](https://example.com/).\n\n\
        - [x] first\n- second\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nlet x;\n```";
    expect![
        "Report · All is well: 3 things, see the site. · ☑ first · second · a · b · 1 · 2 · let x;"
    ]
    .assert_eq(&markdown_line(text));
    assert_eq!(markdown_line("snake_case_name and 2 * 3 * 4"), "snake_case_name and 2 * 3 * 4");
    assert_eq!(markdown_line("<b>x</b>\u{202e}"), "<b>x</b>\\u{202e}", "it is text, to be escaped");
    let long = "x ".repeat(1_000_000);
    assert!(markdown_line(&long).len() <= 4 * 1024);
}

#[test]
fn what_is_typed_stands_out_where_backticks_are_in_pairs() {
    let html = |text| inline_code(text).into_string();
    assert_eq!(html("run `ls <x>` now"), "run <code>ls &lt;x&gt;</code> now");
    assert_eq!(html("a ` b"), "a ` b");
}

#[test]
fn a_text_too_long_for_markdown_is_shown_as_it_is() {
    let text = format!("# {}<script>", "x".repeat(crate::MARKDOWN_BYTES_MAX));
    let html = markdown(&text).into_string();
    assert!(html.starts_with(r#"<pre class="code"># xxx"#));
    is_inert(&html);
}

#[test]
fn rows_of_transcripts_cannot_act_whatever_is_in_them() {
    for text in EVIL {
        let json = serde_json::json!(text);
        for row in [
            format!(r#"{{"type":"assistant","content":{json}}}"#),
            format!(r#"{{"type":"system","subtype":"user_input","content":{json}}}"#),
            format!(
                r#"{{"type":"tool_use","tool_name":{json},"input":{{"file_path":{json}}},"id":{json}}}"#
            ),
            format!(
                r#"{{"type":"tool_result","tool_use_id":{json},"result":{json},"success":false,"error":{json}}}"#
            ),
            format!(r#"{{"type":"error","message":{json}}}"#),
            format!(
                r#"{{"type":{json},"message":{{"content":[{{"type":"text","text":{json}}},{{"type":{json}}}]}}}}"#
            ),
            format!(
                r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","content":{json}}}]}}}}"#
            ),
            text.to_owned(),
        ] {
            is_inert(&row_html(7, &row));
        }
    }
}

#[test]
fn rows_say_who_did_what() {
    let shown = |row: &str| {
        let html = row_html(3, row);
        let text: Vec<&str> =
            html.split('<').filter_map(|part| Some(part.split_once('>')?.1)).collect();
        text.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let row = r#"{"type":"tool_use","tool_name":"Bash","input":{"command":"ls\n-l"},"timestamp":"2026-11-15T10:00:01Z"}"#;
    assert_eq!(
        shown(row),
        r#"tool 10:00:01 UTC 3 Bash ls -l { &quot;command&quot;: &quot;ls\n-l&quot; }"#
    );
    assert_eq!(row_summary(row.as_bytes()), "Bash ls -l");
    let row = r#"{"type":"tool_result","tool_use_id":"t1","result":"one\ntwo","success":true}"#;
    assert_eq!(shown(row), "tool 3 result one two 2 lines one two");
    let row = r#"{"type":"tool_result","subtype":"success","num_turns":1,"duration_ms":1500,"total_cost_usd":0.25}"#;
    assert_eq!(shown(row), "end of turn 3 success · 1 turn · 1.5s · $0.25");
    assert_eq!(row_summary(row.as_bytes()), "");
    assert_eq!(shown("{"), "unreadable 3 {");
    assert!(row_html(3, r#"{"type":"tool_use","id":"t1"}"#).contains(r#"data-call="t1""#));
    let row = r#"{"type":"tool_result","tool_use_id":"t1","result":"one","duration_ms":40}"#;
    assert!(row_html(3, row).contains(r#"data-took="40""#));
}

#[test]
fn a_long_result_is_cut_and_says_so() {
    let text = "ü".repeat(crate::transcript::TOOL_BYTES_MAX);
    let row = serde_json::json!({ "type": "tool_result", "tool_use_id": "t", "result": text });
    let html = row_html(1, &row.to_string());
    assert!(html.contains(&format!("[{} more bytes are in the transcript]", text.len() / 2)));
}

fn evil_overview(text: &str) -> FleetOverview {
    let rows = vec![format!(r#"{{"type":"assistant","content":{}}}"#, serde_json::json!(text))];
    FleetOverview {
        activity: FleetActivity { running: 1, waiting: 0, failed24h: 1, approvals: 0 },
        agents: 1,
        jobs: 12_345,
        running: vec![RunningJobSummary { job: job(text), last_rows: rows }],
        waiting: Vec::new(),
        next: vec![UpcomingSchedule {
            agent: text.to_owned(),
            schedule: text.to_owned(),
            at: at(90),
        }],
        failed: vec![job(text)],
        recent: vec![job(text)],
        approvals: Vec::new(),
        cost_today_usd: 1.25,
    }
}

fn figures(agent: &str) -> FleetCharts {
    let hour = |back: i64| HourlyJobCounts {
        from: at(-3_600 * back),
        completed: back,
        failed: 1,
        others: 0,
    };
    let day = |day: &str, cost_usd| DailyCost { day: day.parse().unwrap(), cost_usd };
    FleetCharts {
        hours: vec![hour(2), hour(1), hour(0)],
        days: vec![day("2026-11-14", 0.0), day("2026-11-15", 1.25)],
        durations: vec![JobDuration {
            id: "job-1".to_owned(),
            agent: agent.to_owned(),
            status: JobStatus::Failed,
            seconds: 61.0,
        }],
    }
}

fn evil_change(text: &str) -> ConfigChangeSummary {
    let file = ChangedFileSummary {
        path: text.to_owned(),
        change: "changed".to_owned(),
        lines: vec![format!("+ {text}")],
    };
    let jobs = vec![text.to_owned()];
    ConfigChangeSummary { fingerprint: "ab12".to_owned(), jobs, files: vec![file] }
}

fn evil_link(text: &str) -> ChatLinkSummary {
    ChatLinkSummary {
        platform: text.to_owned(),
        account: text.to_owned(),
        state: "failed".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        last_event_at: Some(Timestamp::UNIX_EPOCH),
        record_ms: Some(7),
        rate_limits: 1_200,
        problem: Some(text.to_owned()),
    }
}

#[test]
fn the_overview_shows_the_links_to_chat_platforms() {
    let links = [evil_link("cannot reach slack.com")];
    let now = evil_overview("a");
    let html = overview::page(&frame(), &now, &figures("a"), None, &links).into_string();
    for text in [
        "Chat platforms",
        "cannot reach slack.com",
        "recorded in 7 ms",
        "Calls refused by limits: 1",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    let html = overview::page(&frame(), &now, &figures("a"), None, &[]).into_string();
    assert!(!html.contains("Chat platforms"), "{html}");
}

#[test]
fn only_an_administrator_is_offered_a_change_of_the_config() {
    let offers = |scope: ViewerScope| {
        let frame = PageFrame { viewer_scope: scope, ..frame() };
        let change = evil_change("command: \u{202e}x");
        let page = overview::page(&frame, &evil_overview("a"), &figures("a"), Some(&change), &[]);
        let html = page.into_string();
        assert!(html.contains("+ command: \\u{202e}x"), "nothing is hidden: {html}");
        html.contains("accept-config") && html.contains("ab12")
    };
    assert_eq!([ViewerScope::Operate, ViewerScope::Admin].map(offers), [false, true]);
}

#[test]
fn pages_cannot_act_whatever_agents_are_called_and_say() {
    for text in EVIL {
        let change = evil_change(text);
        let (now, charts, chats) = (evil_overview(text), figures(text), [evil_link(text)]);
        let page = overview::page(&frame(), &now, &charts, Some(&change), &chats);
        is_inert(&page.into_string());
        let page =
            JobPage { jobs: vec![job(text)], total: 1, limit: 1, next: Some(text.to_owned()) };
        let (agent, host) = (text.to_owned(), text.to_owned());
        let view = jobs::JobsView { agent, host, ..jobs::JobsView::default() };
        is_inert(&jobs::page(&frame(), &view, &page).into_string());
    }
}

#[test]
fn pages_tell_in_words_what_charts_draw() {
    let html =
        overview::page(&frame(), &evil_overview("a"), &figures("a"), None, &[]).into_string();
    assert!(html.contains(r#"aria-label="6 jobs in 3 hours, 3 failed""#), "{html}");
    assert!(html.contains("$1.25 in 2 days"), "{html}");
    assert!(html.contains("one job: 1:01"), "{html}");
}

#[test]
fn the_next_page_keeps_the_filters() {
    let jobs = JobPage { jobs: vec![job("a")], total: 9, limit: 1, next: Some("job-2".to_owned()) };
    let view = jobs::JobsView {
        agent: "a b".to_owned(),
        status: Some(JobStatus::Failed),
        since: "24h".to_owned(),
        host: "beta".to_owned(),
        ..jobs::JobsView::default()
    };
    let html = jobs::page(&frame(), &view, &jobs).into_string();
    assert!(
        html.contains(
            "/jobs?agent=a%20b&amp;status=failed&amp;since=24h&amp;host=beta&amp;before=job-2"
        ),
        "{html}"
    );
}

#[test]
fn who_may_only_look_is_offered_nothing_else() {
    let agents = heeler_query::agents::AgentPage { agents: Vec::new(), total: 0 };
    let reader = PageFrame { viewer_scope: ViewerScope::Read, csrf_token: None, ..frame() };
    let html = crate::agents::page(&reader, &agents, &["gone".to_owned()]).into_string();
    assert!(!html.contains("data-action") && !html.contains("name=\"csrf\""), "{html}");
}

#[test]
fn what_would_not_be_seen_is_shown() {
    assert_eq!(visible_line(" a\n\tb\u{202e}c\u{7} "), "a b\\u{202e}c\\u{7}");
    assert_eq!(clamp_line(&"ü".repeat(CLAMPED_CHARS_MAX)).chars().count(), CLAMPED_CHARS_MAX);
    assert_eq!(clamp_line(&"ü".repeat(CLAMPED_CHARS_MAX + 1)), "ü".repeat(CLAMPED_CHARS_MAX) + "…");
    assert_eq!(encode_segment("a/b c?ü"), "a%2Fb%20c%3F%C3%BC");
}

#[test]
fn what_was_searched_for_is_marked() {
    let shown = |text, wanted| highlight_matches(text, wanted).into_string();
    assert_eq!(shown("Tulips & tulips", "tulip"), "<mark>Tulip</mark>s &amp; <mark>tulip</mark>s");
    assert_eq!(shown("<b>", "b"), "&lt;<mark>b</mark>&gt;");
    assert_eq!(shown("İstanbul", "i"), "İstanbul");
    assert_eq!(shown("a", ""), "a");
}

#[test]
fn what_was_found_leads_to_its_row() {
    let hit = |id: &str| SearchHitSummary {
        id: id.to_owned(),
        file: "f".to_owned(),
        line: 8,
        row: serde_json::json!({ "type": "assistant", "content": "tulip" }),
        text: String::new(),
    };
    let hits = vec![hit("job-2026-11-15-abc123"), hit("sess-1")];
    let found = SearchPage { hits, more: false, transcripts: 2 };
    let html = search::page(&frame(), &SearchView::default(), Some(&found)).into_string();
    assert!(html.contains("href=\"/jobs/job-2026-11-15-abc123#row-7\""), "{html}");
    assert!(html.contains("href=\"/sessions/sess-1\""), "{html}");
}

#[test]
fn times_and_figures_read_as_people_say_them() {
    let ago = |seconds: i64| format_relative(at(-seconds), at(0));
    assert_eq!([ago(0), ago(59), ago(60)], ["now", "59 s ago", "1 min ago"]);
    assert_eq!([ago(7_300), ago(-90), ago(200_000)], ["2 h ago", "in 1 min", "2 d ago"]);
    assert_eq!(
        [format_clock(65), format_clock(7_269), format_clock(-1)],
        ["1:05", "2:01:09", "0:00"]
    );
    assert_eq!([format_clock_duration(0.084), format_clock_duration(1.84)], ["84 ms", "1.8 s"]);
    assert_eq!([format_clock_duration(12.4), format_clock_duration(65.0)], ["12 s", "1:05"]);
    assert_eq!(
        [format_usd(0.0), format_usd(0.0042), format_usd(1.2)],
        ["$0.00", "$0.0042", "$1.20"]
    );
    assert_eq!(
        [format_grouped(999), format_grouped(1_234_567)],
        ["999", "1\u{202f}234\u{202f}567"]
    );
    assert_eq!([format_span(3_599), format_span(86_400)], ["59 min", "1 d"]);
}

#[test]
fn files_of_pages_are_found_by_their_address_and_are_small() {
    // Only some pages load these files.
    let is_rare = |name: &str| matches!(name, "work.css" | "transcript.js" | "answer.js");
    // Only the page that edits config files loads these.
    let is_editor = |name: &str| matches!(name, "config.js" | "config-form.js");
    // The settings page loads the first one, and a browser that was added the other one.
    let is_push = |name: &str| matches!(name, "push.js" | "worker.js");
    let of = |is_wanted: &dyn Fn(&str) -> bool| -> usize {
        let wanted = assets::ALL_ASSETS.iter().filter(|asset| is_wanted(asset.name));
        wanted.map(|asset| asset.bytes.len()).sum()
    };
    let is_common = |name: &str| !is_rare(name) && !is_editor(name) && !is_push(name);
    let (common, rare) = (of(&is_common), of(&is_rare));
    assert!(of(&is_editor) < 20 * 1024, "{}", of(&is_editor));
    assert!(of(&is_push) < 8 * 1024, "{}", of(&is_push));
    assert!(common < 64 * 1024, "{common}");
    assert!(rare < 32 * 1024, "{rare}");
    for asset in assets::ALL_ASSETS {
        let href = assets::href(asset.name);
        assert_eq!(href, format!("/assets/{}/{}", assets::version(), asset.name));
        assert_eq!(assets::find(asset.name), Some(asset));
    }
    assert_eq!(assets::find("../Cargo.toml"), None);
}
