//! Templates and expressions: Last Light's and Heeler's syntax, literal values, limits.

use std::sync::Arc;

use expect_test::expect;
use indexmap::IndexMap;
use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

/// Values visible in the tests.
struct TemplateFixture {
    context: Json,
    scratch: Map<String, Json>,
    outputs: IndexMap<String, Arc<str>>,
    loop_results: IndexMap<String, Json>,
    more: Vec<(&'static str, Json)>,
}

impl TemplateFixture {
    fn scope(&self) -> TemplateScope<'_> {
        TemplateScope {
            context: &self.context,
            scratch: &self.scratch,
            outputs: &self.outputs,
            loop_results: &self.loop_results,
            extra_names: &self.more,
        }
    }
}

fn world() -> TemplateFixture {
    let scratch = json!({"fix": {"class": "flaky", "n-th": 3}, "ready": "yes"});
    let Json::Object(scratch) = scratch else { unreachable!("it is a map") };
    let outputs = [("plan", "Do it."), ("read-it", "It says X."), ("empty", "")];
    TemplateFixture {
        loop_results: [("verdict".to_owned(), json!({"approved": false, "cycles": 2}))].into(),
        context: json!({
            "repo": "heeler", "owner": "o", "branch": "b", "number": 7, "yes": true, "no": false,
            "none": null, "title": "Ein schöner Tag, & mehr!", "labels": ["a", "b"],
            "models": {"pr-fix": "opus", "plan": "haiku"}, "zero": 0, "z": {"b": 1, "a": 2},
        }),
        scratch,
        outputs: outputs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Arc::from(*text)))
            .collect(),
        more: vec![("output", json!("READY now")), ("item", json!({"name": "one", "n": 1}))],
    }
}

#[track_caller]
fn check(template: &str, expected: &str) {
    let rendered = WorkflowTemplate::parse(template).unwrap().render(&world().scope()).unwrap();
    assert_eq!(rendered, expected, "{template}");
}

#[test]
fn last_lights_files_in_the_checkout_have_their_paths() {
    check("Write `{{verifyScript}}`.", "Write `.git/lastlight-verify.sh`.");
    check("{{notesFile}}{{#if priorNotes}}never{{/if}}", ".git/lastlight-notes");
    check("[{{verifyScript.part}}]", "[]");
    let mut own = world();
    own.context["verifyScript"] = json!("check.sh");
    let template = WorkflowTemplate::parse("{{verifyScript}}").unwrap();
    assert_eq!(template.render(&own.scope()).unwrap(), "check.sh", "an input comes first");
}

#[test]
fn values_are_put_in_by_the_old_forms() {
    check("{{repo}}/{{ number }}", "heeler/7");
    check("[{{missing}}|{{a.b.c}}|{{none}}|{{empty}}]", "[|||]");
    check("{{models.pr-fix}} {{models.plan}} {{ models.pr-fix }}", "opus haiku opus");
    check("${plan.output} ${read-it.output} ${unknown.output}", "Do it. It says X. ");
    check(
        "{{plan}} {{read-it}} {{read-it.output}} {{plan.output}}",
        "Do it. It says X. It says X. Do it.",
    );
    check("{{phaseOutputs.plan}} {{outputs.plan}} {{outputs.read-it}}", "Do it. Do it. It says X.");
    check("{{scratch.fix.class}} {{scratch.fix.n-th}} {{inputs.repo}}", "flaky 3 heeler");
    check("{{labels}} {{z}} {{labels.1}}", r#"["a","b"] {"b":1,"a":2} b"#);
    check("{{slugify title}}.", "ein-sch-ner-tag-mehr.");
    check("{{#if !verdict.approved}}open after {{verdict.cycles}}{{/if}}", "open after 2");
    check("{{verdict}} {{outputs.verdict.cycles}}", r#"{"approved":false,"cycles":2} 2"#);
    check("{{branchUrl a-b.md}}", "https://github.com/o/heeler/blob/b/a-b.md");
    check("{{artifactUrl it's a-plan.md}}", "it's a-plan.md");
    check("({{approvalUrl}})", "()");
    check("{{#if yes}}A{{/if}}{{#if !yes}}B{{/if}}{{#if no}}C{{/if}}{{#if !no}}D{{/if}}", "AD");
    check("{{#if models.pr-fix}}x{{#if zero}}y{{/if}}{{/if}}{{#if empty}}z{{/if}}", "x");
    check("$HOME ${HOME} ${plan.other} $", "$HOME ${HOME} ${plan.other} $");
}

#[test]
fn values_are_put_in_by_the_new_forms() {
    check("{{ repo | upper }} {{ labels | join(', ') }}", "HEELER a, b");
    check("{% for label in labels %}{{ label }};{% endfor %}", "a;b;");
    check("{% if number > 6 and not no %}big{% else %}small{% endif %}", "big");
    check(
        "{{ outputs[\"read-it\"] | length }} {{ item.name }} {{ z | json }}",
        r#"10 one {"b":1,"a":2}"#,
    );
    check("{{ outputs | length }} {{ scratch | length }}", "3 2");
    check("{{ plan }} {% if 'Do' in plan.output %}yes{% endif %}", "Do it. yes");
    check("{% raw %}{{ repo }} ${plan.output}{% endraw %}", "{{ repo }} ${plan.output}");
    check("a{# {{ repo }} #}b", "ab");
    check("{{ 'a}}b' }}", "a}}b");
    check("line\n\n", "line\n\n");
    check("{{ repo }}\n", "heeler\n");
}

#[test]
fn the_length_of_a_variable_in_the_shell_is_no_comment() {
    for text in ["${#VAR}", "a ${#} b", "${#list[@]}", "${#list[*]} ${#VAR}", "\"${#1}\""] {
        check(text, text);
        let template = WorkflowTemplate::parse_shell(text).unwrap();
        assert_eq!(template.render(&world().scope()).unwrap(), text);
    }
    // Quotes are still tracked.
    let command =
        WorkflowTemplate::parse_shell("[ ${#X} -gt 2 ] && echo \"{{ title }}\" {{ repo }}")
            .unwrap();
    let rendered = command.render(&world().scope()).unwrap();
    assert!(rendered.starts_with("[ ${#X} -gt 2 ] && echo \"\"'"), "{rendered}");
    check("a ${# a comment #}b", "a $b");
    check("${#a#}", "$");
}

#[test]
fn our_own_names_come_before_the_context_and_that_before_outputs() {
    let mut world = world();
    world.context["plan"] = json!({"output": "of the context"});
    world.context["outputs"] = json!("not seen");
    world.more.push(("repo", json!("ours")));
    let check = |template: &str, expected: &str| {
        let template = WorkflowTemplate::parse(template).unwrap();
        assert_eq!(template.render(&world.scope()).unwrap(), expected);
    };
    check("{{ repo }}", "ours");
    check("{{ plan.output }} {{ outputs.plan }}", "of the context Do it.");
}

#[test]
fn only_what_a_template_names_is_made_ready() {
    let template = WorkflowTemplate::parse("{{ outputs.a }} {{ scratch.b.c }} {{ d }}").unwrap();
    let world = world();
    let values = world.scope().values(&template.names, &template.translated.slots);
    assert_eq!(json(&values).unwrap(), r#"{"outputs":{},"scratch":{}}"#);
    let template = WorkflowTemplate::parse("{{ outputs.plan }} ${read-it.output}").unwrap();
    let values = world.scope().values(&template.names, &template.translated.slots);
    let expected = r#"{"outputs":{"plan":"Do it."},"_slot0":"It says X."}"#;
    assert_eq!(json(&values).unwrap(), expected);
}

#[track_caller]
fn refused(template: &str, message: &str, line: usize) {
    let error = WorkflowTemplate::parse(template).unwrap_err();
    assert_eq!((error.message.as_str(), error.line), (message, Some(line)), "{template}");
}

#[test]
fn a_template_that_means_nothing_is_refused_with_its_line() {
    refused("a\n{{ repo", "`{{` has no `}}`", 2);
    refused("{% if x %}", "unexpected end of input, expected end of block", 1);
    refused(
        "\n\n{{#each x}}",
        "`{{#each x}}` is not known: write `{% for … %}` or `{% if … %}`",
        3,
    );
    refused(
        "{{#if a == b}}",
        "`{{#if a == b}}` names no value: write `{% if … %}` for more than a name",
        1,
    );
    refused("{{ a b }}", "unexpected identifier, expected end of variable block", 1);
    refused("\n{{ a | nope }}", "there is no filter `nope`", 2);
    refused("{% if a is nope %}{% endif %}", "there is no test `nope`", 1);
    refused("{{ nope(a) }}", "there is no function `nope`", 1);
    refused("{{ a | safe }}", "there is no filter `safe`", 1);
    refused("{% include 'x' %}", "unknown statement include", 1);
}

/// Sources of text from an agent.
const WAYS: [&str; 14] = [
    "${plan.output}",
    "{{plan}}",
    "{{plan.output}}",
    "{{outputs.plan}}",
    "{{phaseOutputs.plan}}",
    "{{scratch.note}}",
    "{{scratch.a-b}}",
    "{{inputs.repo}}",
    "{{repo}}",
    "{{item}}",
    "{{previousOutput}}",
    "{{ outputs['plan'] }}",
    "{{ previousOutput | trim }}",
    "{% for one in [item] %}{{ one }}{% endfor %}",
];

fn told(text: &str) -> TemplateFixture {
    let Json::Object(scratch) = json!({"note": text, "a-b": text}) else { unreachable!("a map") };
    let outputs = [("plan".to_owned(), Arc::from(text)), ("secret".to_owned(), Arc::from("S"))];
    TemplateFixture {
        loop_results: IndexMap::new(),
        context: json!({"repo": text, "x": "EXPANDED"}),
        scratch,
        outputs: outputs.into_iter().collect(),
        more: vec![("item", json!(text)), ("previousOutput", json!(text))],
    }
}

#[test]
fn template_syntax_in_a_value_stays_text_however_it_comes() {
    let texts = [
        "{{x}}",
        "${secret.output}",
        "{{#if x}}y{{/if}}",
        "{% if true %}z{% endif %}",
        "{# c #}",
        "{{ outputs.secret }}",
        "_slot0",
        "{{",
        "%}",
        "{% raw %}",
        "{{slugify x}}",
        "$${x.output}",
    ];
    for text in texts {
        let world = told(text);
        for way in WAYS {
            // The text around it would be expanded if the result were parsed again.
            let template =
                WorkflowTemplate::parse(&format!("{{{{x}}}}:{way}:${{secret.output}}")).unwrap();
            let rendered = template.render(&world.scope()).unwrap();
            assert_eq!(rendered, format!("EXPANDED:{text}:S"), "{way}");
        }
    }
}

proptest! {
    #[test]
    fn no_value_is_ever_expanded(text in r"[{}%#$a-z./ '|_-]{0,24}|\PC{0,12}", way in 0..12_usize) {
        let template = WorkflowTemplate::parse(WAYS[way]).unwrap();
        prop_assert_eq!(template.render(&told(&text).scope()).unwrap(), text);
    }

    #[test]
    fn any_text_is_a_template_or_a_fault(text in r"[{}%#$a-z./ '|_\n-]{0,40}") {
        let _either = WorkflowTemplate::parse(&text);
        let _either = WorkflowTemplate::parse_shell(&text);
        let _either = WorkflowExpression::parse(&text);
    }
}

#[track_caller]
fn holds(expression: &str, expected: bool) {
    let parsed = WorkflowExpression::parse(expression).unwrap();
    assert_eq!(parsed.is_true(&world().scope()).unwrap(), expected, "{expression}");
}

#[test]
fn old_expressions_go_by_the_old_rules() {
    holds("output.contains('READY')", true);
    holds("output.contains(\"ready\")", false);
    holds("scratch.fix.class == 'flaky'", true);
    holds("scratch.fix.n-th == '3'", true);
    holds("scratch.fix.class != 'flaky'", false);
    holds("scratch.fix.class != 'other'", true);
    holds("scratch.fix.missing != 'x'", false);
    holds("scratch.fix.missing == 'x'", false);
    holds("scratch.ready == true", true);
    holds("scratch.ready != true", false);
    holds("missing == true", false);
    holds("missing == false", true);
    holds("yes == true", true);
    holds("number == true", true);
    holds("zero == false", true);
    holds("number.contains('7')", true);
    holds("labels.contains('a')", false);
    holds("phaseOutputs.plan.contains('Do')", true);
    holds("{{ output.contains('READY') }}", true);
    holds("missing.contains('x')", false);
}

#[test]
fn new_expressions_have_and_or_not_and_comparison() {
    holds("output.contains('READY') and not no", true);
    holds("output.contains('A') or output.contains('now')", true);
    holds("number >= 7 and number < 8", true);
    holds("not (yes and no)", true);
    holds("'flaky' in scratch.fix.class", true);
    holds("'a' in labels", true);
    holds("missing is defined", false);
    holds("plan.output == 'Do it.' and plan.contains('it')", true);
    holds("outputs['read-it'] and true", true);
    holds("missing.contains('x') or missing", false);
    holds("labels | length == 2", true);
    holds("scratch.fix.class == repo", false);
}

#[test]
fn an_expression_that_means_nothing_is_a_fault() {
    let texts =
        ["output contains 'x'", "", "a &&& b", "a | nope", "a == 'x", "has(a)", "a and", "(a"];
    let said = |text: &&str| {
        let error = WorkflowExpression::parse(text).unwrap_err();
        format!("{text}: {error}\n")
    };
    expect![[r#"
        output contains 'x': unexpected input after expression
        : unexpected end of input, expected expression
        a &&& b: unexpected character
        a | nope: there is no filter `nope`
        a == 'x: unexpected end of string
        has(a): there is no function `has`
        a and: unexpected end of input, expected expression
        (a: unexpected end of input, expected `)`
    "#]]
    .assert_eq(&texts.iter().map(said).collect::<String>());
}

#[test]
fn an_expression_has_a_value() {
    let value =
        |text: &str| WorkflowExpression::parse(text).unwrap().value(&world().scope()).unwrap();
    assert_eq!(value("labels"), json!(["a", "b"]));
    assert_eq!(value("{{ labels }}"), json!(["a", "b"]));
    assert_eq!(value("${plan.output}"), json!("Do it."));
    assert_eq!(value("models.pr-fix"), json!("opus"));
    assert_eq!(value(r#"["x", 1, null]"#), json!(["x", 1, null]));
    assert_eq!(value("missing"), json!(null));
    assert_eq!(value("number + 1"), json!(8));
    assert_eq!(value("z"), json!({"b": 1, "a": 2}));
}

#[track_caller]
fn command(template: &str, expected: &str) {
    let mut world = told("a b'; rm -rf $(pwd)");
    world.context["word"] = json!("src/main.rs");
    let rendered = WorkflowTemplate::parse_shell(template).unwrap().render(&world.scope()).unwrap();
    assert_eq!(rendered, expected, "{template}");
}

#[test]
fn values_in_a_command_are_quoted_where_they_stand() {
    command("ls {{word}}", "ls src/main.rs");
    command("echo {{repo}} x", r"echo 'a b'\''; rm -rf $(pwd)' x");
    command("echo \"{{repo}} x\"", r#"echo ""'a b'\''; rm -rf $(pwd)'" x""#);
    command("echo '{{word}} x'", "echo ''src/main.rs' x'");
    command("echo $(cat {{repo}})", r"echo $(cat 'a b'\''; rm -rf $(pwd)')");
    command("echo \"$(cat {{word}})\" {{word}}", "echo \"$(cat src/main.rs)\" src/main.rs");
    command("echo {{missing}}.", "echo ''.");
    command("{% if repo %}echo \"{{word}}\"{% else %}true{% endif %}", "echo \"\"src/main.rs\"\"");
    command("{{ repo | raw }}", "a b'; rm -rf $(pwd)");
    command("\"{{ repo|raw }}\"", "\"a b'; rm -rf $(pwd)\"");
    command("# why\necho {{word}} \\\n  ${HOME}", "# why\necho src/main.rs \\\n  ${HOME}");
    command("echo ${plan.output}", r"echo 'a b'\''; rm -rf $(pwd)'");
    command("echo {{ [word] }}", r#"echo '["src/main.rs"]'"#);
}

#[test]
fn a_value_is_refused_where_no_quotes_help() {
    let said = |text: &str| WorkflowTemplate::parse_shell(text).unwrap_err().message;
    let why = |what: &str| {
        format!(
            "a value is not allowed {what}: the shell would expand it; use `| raw` to allow that"
        )
    };
    assert_eq!(said("cat <<E\n{{x}}\nE"), why("after a here-document"));
    assert_eq!(said("# {{x}}"), why("in a comment"));
    assert_eq!(said("echo `cat {{x}}`"), why("after backquotes"));
    assert_eq!(said("echo ${{x}}"), why("after a `$`"));
    assert_eq!(said("echo \\{{x}}"), why("after a backslash"));
    assert_eq!(said("echo $'{{x}}'"), why("within `$'…'`"));
    assert_eq!(said("echo ${a:-{{x}}}"), why("within `${…}`"));
    assert_eq!(said("echo $(({{x}}))"), why("within `$((…))`"));
    assert_eq!(said("\"$(case a in b) {{x}};; esac)\""), why("after `case` within `$(…)`"));
    let quotes = "quotes that begin within a block of a command must end within it";
    assert_eq!(said("{% if a %}\"{% endif %}{{x}}\""), quotes);
    assert_eq!(said("{{#if a}}'{{/if}}{{x}}"), quotes);
}

#[test]
fn a_template_has_so_many_steps_and_so_much_text() {
    let world = world();
    let said = |text: &str| {
        let rendered = WorkflowTemplate::parse(text).unwrap().render(&world.scope());
        rendered.map(|text| text.len()).unwrap_err().to_string()
    };
    let steps = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    assert_eq!(
        said(steps),
        format!("cannot render `{}`: it takes more than 1000000 steps", &steps[..60])
    );
    let long = "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}";
    assert_eq!(said(long), format!("cannot render `{long}`: the result exceeds 8388608 bytes"));
    let nul = WorkflowTemplate::parse_shell("echo {{ 'a\\x00b' }}").unwrap().render(&world.scope());
    let message = nul.unwrap_err().message;
    assert_eq!(message, "invalid operation: a command cannot hold a NUL");
}

#[test]
fn references_are_told_by_all_forms() {
    let of = |text: &str| {
        let paths = WorkflowTemplate::parse(text).unwrap().references();
        paths.iter().map(|path| path.join(".")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("${a.output} {{b.output}} {{c-d.e}}"), "b.output outputs.a c-d.e");
    assert_eq!(
        of("{{ outputs['a-b'] }} {% if inputs[\"c\"] %}{% endif %}"),
        "inputs outputs outputs.a-b inputs.c"
    );
    assert_eq!(of("{% for a in b.c %}{{ a.d }}{% endfor %}"), "b.c");
    let of = |text: &str| WorkflowExpression::parse(text).unwrap().references();
    assert_eq!(of("a.b == 'x'"), [["a", "b"]]);
    assert_eq!(of("scratch['x'] and y"), [vec!["scratch"], vec!["y"], vec!["scratch", "x"]]);
}
