//! What is wrong with a workflow file, told with its place, all at once.

use expect_test::expect;

use crate::{check, check_files, check_phases, load_with, settings};

#[test]
fn unknown_keys_are_errors_with_what_may_be_meant() {
    check(
        "name: w\nagnet: coder\nphases:\n  - name: a\n    prompt: hi\n    depend_on: [b]\n    generic_loop: {max_iterations: 2, untill: x}\n",
        expect![[r#"
            error: unknown key `agnet` in workflow
             --> w.yaml:2:1
              |
            2 | agnet: coder
              | ^^^^^ did you mean `agent`?

            error: unknown key `depend_on` in phase
             --> w.yaml:6:5
              |
            6 |     depend_on: [b]
              |     ^^^^^^^^^ did you mean `depends_on`?

            error: unknown key `untill` in generic_loop
             --> w.yaml:7:39
              |
            7 |     generic_loop: {max_iterations: 2, untill: x}
              |                                       ^^^^^^ did you mean `until`?
        "#]],
    );
}

#[test]
fn a_file_says_its_name_and_its_phases() {
    check(
        "{}",
        expect![[r#"
            error: the key `name` is missing
             --> w.yaml:1:1
              |
            1 | {}
              | ^ `name` belongs here

            error: the key `phases` is missing
             --> w.yaml:1:1
              |
            1 | {}
              | ^ `phases` belongs here
        "#]],
    );
    check(
        "name: w\nagent: coder\nphases: []",
        expect![[r#"
        error: expected at least one phase, found an empty list
         --> w.yaml:3:9
          |
        3 | phases: []
          |         ^ expected at least one phase
    "#]],
    );
    check(
        "- name: w",
        expect![[r#"
        error: expected a map, found a list
         --> w.yaml:1:3
          |
        1 | - name: w
          |   ^^^^ expected a map
    "#]],
    );
}

#[test]
fn names_that_lead_nowhere_are_told_where_they_stand() {
    check_phases(
        "  - {name: plan, prompt: do it}\n  - name: build\n    depends_on: [plann]\n    prompt: |\n      First line\n      ${pln.output} and {{ outputs.plan2 }}\n    skip_if: outputs.plna.contains('x')\n",
        expect![[r#"
            error: there is no phase `plann`
             --> w.yaml:6:18
              |
            6 |     depends_on: [plann]
              |                  ^^^^^ expected the name of a phase
              |
              = help: did you mean `plan`?

            error: there is no phase `pln`
             --> w.yaml:9:9
              |
            9 |       ${pln.output} and {{ outputs.plan2 }}
              |         ^^^ expected the name of a phase
              |
              = help: did you mean `plan`?

            error: there is no phase `plan2`
             --> w.yaml:9:36
              |
            9 |       ${pln.output} and {{ outputs.plan2 }}
              |                                    ^^^^^ expected the name of a phase
              |
              = help: did you mean `plan`?

            error: there is no phase `plna`
              --> w.yaml:10:22
               |
            10 |     skip_if: outputs.plna.contains('x')
               |                      ^^^^ expected the name of a phase
               |
               = help: did you mean `plan`?
        "#]],
    );
    check_phases(
        "  - {name: a, prompt: '{{ b.output }}'}\n",
        expect![[r#"
        error: there is no phase `b`
         --> w.yaml:4:27
          |
        4 |   - {name: a, prompt: '{{ b.output }}'}
          |                           ^ expected the name of a phase
    "#]],
    );
    check_phases(
        "  - {name: read-it, prompt: x}\n  - {name: b, prompt: '{{ outputs.read-it | upper }}'}\n",
        expect![[r#"
            error: there is no phase `read`
             --> w.yaml:5:35
              |
            5 |   - {name: b, prompt: '{{ outputs.read-it | upper }}'}
              |                                   ^^^^ expected the name of a phase
              |
              = help: write `outputs["read-it"]`: a hyphen is a minus here
        "#]],
    );
}

#[test]
fn inputs_that_are_not_asked_for_are_errors() {
    check(
        "name: w\nagent: coder\ninputs: {title: {}}\nphases:\n  - {name: a, prompt: '{{ inputs.titel }} {{ title }} {{ inputs.title }}'}\n  - {name: b, prompt: '{{ titel }} {{ unheard }}'}\n",
        expect![[r#"
            error: there is no input `titel`
             --> w.yaml:5:34
              |
            5 |   - {name: a, prompt: '{{ inputs.titel }} {{ title }} {{ inputs.title }}'}
              |                                  ^^^^^ expected the name of an input
              |
              = help: did you mean `title`?

            error: unknown name `titel`
             --> w.yaml:6:27
              |
            6 |   - {name: b, prompt: '{{ titel }} {{ unheard }}'}
              |                           ^^^^^ expected an input, a phase or its `output_var`
              |
              = help: did you mean `title`?

            error: unknown name `unheard`
             --> w.yaml:6:39
              |
            6 |   - {name: b, prompt: '{{ titel }} {{ unheard }}'}
              |                                       ^^^^^^^ expected an input, a phase or its `output_var`
        "#]],
    );
}

#[test]
fn a_name_that_nothing_has_is_an_error_where_the_inputs_are_declared_and_else_a_doubt() {
    check(
        "name: w\nagent: coder\ninputs: {title: {}}\nphases:\n  - {name: b, prompt: '{{ titel }} {{ unheard }} {{ title }}'}\n",
        expect![[r#"
            error: unknown name `titel`
             --> w.yaml:5:27
              |
            5 |   - {name: b, prompt: '{{ titel }} {{ unheard }} {{ title }}'}
              |                           ^^^^^ expected an input, a phase or its `output_var`
              |
              = help: did you mean `title`?

            error: unknown name `unheard`
             --> w.yaml:5:39
              |
            5 |   - {name: b, prompt: '{{ titel }} {{ unheard }} {{ title }}'}
              |                                       ^^^^^^^ expected an input, a phase or its `output_var`
        "#]],
    );
    check_phases(
        "  - {name: plan, prompt: '{{ issueNumber }} {{ previousOuput }}'}\n",
        expect![[r#"
            warning: unknown name `previousOuput`
             --> w.yaml:4:48
              |
            4 |   - {name: plan, prompt: '{{ issueNumber }} {{ previousOuput }}'}
              |                                                ^^^^^^^^^^^^^ empty unless the run is given such an input
              |
              = help: did you mean `previousOutput`?
        "#]],
    );
}

#[test]
fn with_declared_inputs_what_last_light_gives_a_run_is_not_given() {
    let prompt = "phases:\n  - {name: a, prompt: '{{ repo }} {{ run.id }} {{ phase }}'}\n";
    let open = format!("name: w\nagent: coder\n{prompt}");
    assert!(load_with(&[("w.yaml", &open)], &settings()).is_ok());
    check(
        &format!("name: w\nagent: coder\ninputs: {{title: {{}}}}\n{prompt}"),
        expect![[r#"
        error: unknown name `repo`
         --> w.yaml:5:27
          |
        5 |   - {name: a, prompt: '{{ repo }} {{ run.id }} {{ phase }}'}
          |                           ^^^^ expected an input, a phase or its `output_var`
    "#]],
    );
}

#[test]
fn a_word_of_a_prompt_file_is_found_where_it_is_a_name() {
    let yaml = "name: w\nagent: coder\ninputs: {title: {}}\nphases: [{name: a, prompt: p.md}]\n";
    check_files(
        &[("w.yaml", yaml), ("p.md", "The owner of it:\n{{ owner }}\n")],
        expect![[r#"
        error: unknown name `owner`
         --> p.md:2:4
          |
        2 | {{ owner }}
          |    ^^^^^ expected an input, a phase or its `output_var`
    "#]],
    );
}

#[test]
fn faults_of_every_stage_are_told_at_once() {
    check_phases(
        "  - {name: a, prompt: x, colour: red, agent: codre}\n  - {name: b, agent: nobody, prompt: '{{ outputs.a }} {{ outputs.z }}', depends_on: [a, q]}\n  - {name: c, depends_on: [d], prompt: x}\n  - {name: d, depends_on: [c], prompt: '{{ x'}\n",
        expect![[r#"
            error: unknown key `colour` in phase
             --> w.yaml:4:26
              |
            4 |   - {name: a, prompt: x, colour: red, agent: codre}
              |                          ^^^^^^
              |
              = help: known keys: name, label, type, agent, prompt, skill, skills, model, command, script, runtime, working_directory, timeout_seconds, retry, depends_on, trigger_rule, skip_if, loop, generic_loop, foreach, approval_gate, approval_artifact, approval_gate_message, on_output, on_success, output_var, messages, variant, unrestricted_egress, web_search, requires_sandbox, sandbox_image

            error: there is no agent `codre`
             --> w.yaml:4:46
              |
            4 |   - {name: a, prompt: x, colour: red, agent: codre}
              |                                              ^^^^^ expected the name of an agent
              |
              = help: did you mean `coder`?

            error: there is no agent `nobody`
             --> w.yaml:5:22
              |
            5 |   - {name: b, agent: nobody, prompt: '{{ outputs.a }} {{ outputs.z }}', depends_on: [a, q]}
              |                      ^^^^^^ expected the name of an agent
              |
              = help: the fleet has coder, tester, web.painter

            error: there is no phase `z`
             --> w.yaml:5:66
              |
            5 |   - {name: b, agent: nobody, prompt: '{{ outputs.a }} {{ outputs.z }}', depends_on: [a, q]}
              |                                                                  ^ expected the name of a phase

            error: there is no phase `q`
             --> w.yaml:5:89
              |
            5 |   - {name: b, agent: nobody, prompt: '{{ outputs.a }} {{ outputs.z }}', depends_on: [a, q]}
              |                                                                                         ^ expected the name of a phase

            error: phases depend on each other in a cycle: c -> d -> c
             --> w.yaml:6:28
              |
            6 |   - {name: c, depends_on: [d], prompt: x}
              |                            ^ remove one of these dependencies

            error: not a template: `{{` has no `}}`
             --> w.yaml:7:40
              |
            7 |   - {name: d, depends_on: [c], prompt: '{{ x'}
              |                                        ^^^^^^ expected a template
              |
              = help: put text that is not a template between `{% raw %}` and `{% endraw %}`
        "#]],
    );
}

#[test]
fn what_is_wrong_with_a_workflow_without_a_name_is_told_too() {
    check(
        "agnet: coder\nphases:\n  - {name: a, agent: nobody, prompt: x, depends_on: q}\n",
        expect![[r#"
            error: unknown key `agnet` in workflow
             --> w.yaml:1:1
              |
            1 | agnet: coder
              | ^^^^^ did you mean `agent`?

            error: the key `name` is missing
             --> w.yaml:1:1
              |
            1 | agnet: coder
              | ^^^^^ `name` belongs here

            error: there is no agent `nobody`
             --> w.yaml:3:22
              |
            3 |   - {name: a, agent: nobody, prompt: x, depends_on: q}
              |                      ^^^^^^ expected the name of an agent
              |
              = help: the fleet has coder, tester, web.painter

            error: there is no phase `q`
             --> w.yaml:3:53
              |
            3 |   - {name: a, agent: nobody, prompt: x, depends_on: q}
              |                                                     ^ expected the name of a phase
        "#]],
    );
}

#[test]
fn a_title_is_matched_by_a_regular_expression_that_is_checked() {
    let phase = |pattern: &str| {
        format!(
            "  - {{name: a, prompt: x, on_output: {{contains_BLOCKED: {{unless_title_matches: '{pattern}'}}}}}}\n"
        )
    };
    check_phases(
        &phase("^(chore|docs):"),
        expect![[r#"
        ok
    "#]],
    );
    check_phases(
        &phase("(chore"),
        expect![[r#"
        error: `(chore` is not a regular expression: unclosed group
         --> w.yaml:4:79
          |
        4 |   - {name: a, prompt: x, on_output: {contains_BLOCKED: {unless_title_matches: '(chore'}}}
          |                                                                               ^^^^^^^^ expected one such as `scaffold|bootstrap`
          |
          = help: to match a special character literally, put a backslash before it: `\(`
    "#]],
    );
    let long = format!("name: w\nagent: coder\nphases:\n{}", phase(&"x".repeat(201)));
    let faults = load_with(&[("w.yaml", &long)], &settings()).unwrap_err();
    assert!(faults.list[0].message.ends_with("it is longer than 200 characters"));
    check_phases(
        &phase("((((x{100}){100}){100}){100})"),
        expect![[r#"
        error: `((((x{100}){100}){100}){100})` is not a regular expression: it is too large
         --> w.yaml:4:79
          |
        4 |   - {name: a, prompt: x, on_output: {contains_BLOCKED: {unless_title_matches: '((((x{100}){100}){100}){100})'}}}
          |                                                                               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ expected one such as `scaffold|bootstrap`
          |
          = help: to match a special character literally, put a backslash before it: `\(`
    "#]],
    );
}

#[test]
fn what_an_input_is_by_default_must_fit() {
    check(
        "name: w\nagent: coder\ninputs:\n  n: {type: number, default: many}\n  o: {options: [a, b], default: c}\n  b: {type: boolean, options: [1]}\n  outputs: {}\n  a.b: {}\nphases: [{name: a, prompt: x}]\n",
        expect![[r#"
            error: "many" is not a number
             --> w.yaml:4:30
              |
            4 |   n: {type: number, default: many}
              |                              ^^^^ expected a number

            error: the default "c" is not one of the `options`
             --> w.yaml:5:33
              |
            5 |   o: {options: [a, b], default: c}
              |                                 ^ expected one of them

            error: 1 is not a boolean
             --> w.yaml:6:32
              |
            6 |   b: {type: boolean, options: [1]}
              |                                ^ expected a boolean

            error: invalid input name `outputs`
             --> w.yaml:7:3
              |
            7 |   outputs: {}
              |   ^^^^^^^ expected a word such as `title`

            error: invalid input name `a.b`
             --> w.yaml:8:3
              |
            8 |   a.b: {}
              |   ^^^ expected a word such as `title`
        "#]],
    );
}

#[test]
fn circles_are_told_with_their_way() {
    check_phases(
        "  - {name: a, prompt: x, depends_on: a}\n",
        expect![[r#"
        error: the phase `a` depends on itself
         --> w.yaml:4:38
          |
        4 |   - {name: a, prompt: x, depends_on: a}
          |                                      ^ remove one of these dependencies
    "#]],
    );
    check_phases(
        "  - {name: z, prompt: x, depends_on: [a]}\n  - {name: a, prompt: x, depends_on: [b]}\n  - {name: b, prompt: x, depends_on: [c]}\n  - {name: c, prompt: x, depends_on: [a]}\n",
        expect![[r#"
            error: phases depend on each other in a cycle: a -> b -> c -> a
             --> w.yaml:5:39
              |
            5 |   - {name: a, prompt: x, depends_on: [b]}
              |                                       ^ remove one of these dependencies
        "#]],
    );
}

#[test]
fn agents_must_be_of_the_fleet() {
    check(
        "name: w\nagent: codr\nphases: [{name: a, prompt: x}]",
        expect![[r#"
            error: there is no agent `codr`
             --> w.yaml:2:8
              |
            2 | agent: codr
              |        ^^^^ expected the name of an agent
              |
              = help: did you mean `coder`?
        "#]],
    );
    check(
        "name: w\nphases: [{name: a, prompt: x}, {name: b, type: bash, command: ls}, {name: c, type: context}]",
        expect![[r#"
            error: no agent is set for the phase `a`
             --> w.yaml:2:17
              |
            2 | phases: [{name: a, prompt: x}, {name: b, type: bash, command: ls}, {name: c, type: context}]
              |                 ^ an agent is required
              |
              = help: set `agent:` in the phase, in the workflow, or in `workflows:` of the fleet file

            error: no agent is set for the phase `b`
             --> w.yaml:2:39
              |
            2 | phases: [{name: a, prompt: x}, {name: b, type: bash, command: ls}, {name: c, type: context}]
              |                                       ^ an agent is required
              |
              = help: set `agent:` in the phase, in the workflow, or in `workflows:` of the fleet file
        "#]],
    );
}

#[test]
fn a_phase_has_what_its_type_needs_and_nothing_else() {
    check_phases(
        "  - {name: a}\n  - {name: b, type: bash}\n  - {name: c, type: script, script: x}\n  - {name: d, type: script, runtime: js}\n  - {name: e, type: bash, command: ls, prompt: x, script: y}\n  - {name: f, type: context, command: ls, foreach: [a]}\n  - {name: g, type: bash, command: ls, loop: {max_cycles: 1, on_request_changes: {fix_prompt: a, re_review_prompt: b}}}\n  - {name: h, type: post-review}\n  - {name: i, type: shell}\n",
        expect![[r#"
            error: the phase `a` has no `prompt`
             --> w.yaml:4:12
              |
            4 |   - {name: a}
              |            ^ `type: agent` needs one

            error: the phase `b` has no `command`
             --> w.yaml:5:12
              |
            5 |   - {name: b, type: bash}
              |            ^ `type: bash` needs one

            error: the phase `c` has no `runtime`
             --> w.yaml:6:12
              |
            6 |   - {name: c, type: script, script: x}
              |            ^ `type: script` needs one

            error: the phase `d` has no `script`
             --> w.yaml:7:12
              |
            7 |   - {name: d, type: script, runtime: js}
              |            ^ `type: script` needs one

            error: `prompt` belongs to a phase with `type: agent`
             --> w.yaml:8:48
              |
            8 |   - {name: e, type: bash, command: ls, prompt: x, script: y}
              |                                                ^ this one has `type: bash`

            error: `script` belongs to a phase with `type: script`
             --> w.yaml:8:59
              |
            8 |   - {name: e, type: bash, command: ls, prompt: x, script: y}
              |                                                           ^ this one has `type: bash`

            error: `command` belongs to a phase with `type: bash`
             --> w.yaml:9:39
              |
            9 |   - {name: f, type: context, command: ls, foreach: [a]}
              |                                       ^^ this one has `type: context`

            error: `foreach` belongs to a phase with `type: agent` or `type: bash` or `type: script`
             --> w.yaml:9:53
              |
            9 |   - {name: f, type: context, command: ls, foreach: [a]}
              |                                                     ^ this one has `type: context`

            error: `loop` belongs to a phase with `type: agent`
              --> w.yaml:10:47
               |
            10 |   - {name: g, type: bash, command: ls, loop: {max_cycles: 1, on_request_changes: {fix_prompt: a, re_review_prompt: b}}}
               |                                               ^^^^^^^^^^ this one has `type: bash`

            error: `post-review` needs access to GitHub
              --> w.yaml:11:21
               |
            11 |   - {name: h, type: post-review}
               |                     ^^^^^^^^^^^ it cannot be posted
               |
               = help: set `github` in the fleet file, with `token_env` or `app`, and `repos`

            error: expected one of: context, agent, bash, script, post-review; found `shell`
              --> w.yaml:12:21
               |
            12 |   - {name: i, type: shell}
               |                     ^^^^^ expected one of: context, agent, bash, script, post-review
        "#]],
    );
}

#[test]
fn loops_say_when_they_end() {
    check_phases(
        "  - name: a\n    prompt: x\n    generic_loop: {max_iterations: 3}\n    foreach: [b]\n  - name: b\n    prompt: x\n    generic_loop: {max_iterations: 1001, until: output}\n  - name: c\n    prompt: x\n    generic_loop: {max_iterations: {from: a.b, default: 5000}, until: output}\n    timeout_seconds: 0\n  - name: d\n    prompt: x\n    loop: {max_cycles: 0, on_request_changes: {fix_prompt: a}}\n",
        expect![[r#"
            error: the loop has neither `until` nor `until_bash`
             --> w.yaml:6:20
              |
            6 |     generic_loop: {max_iterations: 3}
              |                    ^^^^^^^^^^^^^^ set one of them

            error: `generic_loop` and `foreach` cannot be in one phase
             --> w.yaml:7:15
              |
            7 |     foreach: [b]
              |               ^ split it into two phases

            error: expected a whole number from 1 to 1000, found `1001`
              --> w.yaml:10:36
               |
            10 |     generic_loop: {max_iterations: 1001, until: output}
               |                                    ^^^^ expected a whole number from 1 to 1000

            error: expected a whole number from 1 to 1000, found `5000`
              --> w.yaml:13:57
               |
            13 |     generic_loop: {max_iterations: {from: a.b, default: 5000}, until: output}
               |                                                         ^^^^ expected a whole number from 1 to 1000

            error: expected a whole number from 1 to 604800, found `0`
              --> w.yaml:14:22
               |
            14 |     timeout_seconds: 0
               |                      ^ expected a whole number from 1 to 604800

            error: expected a whole number from 1 to 1000, found `0`
              --> w.yaml:17:24
               |
            17 |     loop: {max_cycles: 0, on_request_changes: {fix_prompt: a}}
               |                        ^ expected a whole number from 1 to 1000

            error: the key `re_review_prompt` is missing
              --> w.yaml:17:48
               |
            17 |     loop: {max_cycles: 0, on_request_changes: {fix_prompt: a}}
               |                                                ^^^^^^^^^^ `re_review_prompt` belongs here
        "#]],
    );
}

#[test]
fn gates_know_their_answers() {
    check_phases(
        "  - {name: a, prompt: x, approval_gate: {name: g, timeout: 1h, default: maybe}}\n  - {name: b, prompt: x, approval_gate: {name: h, default: approve}}\n  - {name: c, prompt: x, approval_gate: {name: i, message: m}, approval_gate_message: n}\n  - {name: d, prompt: x, approval_gate: {timeout: 1h}}\n",
        expect![[r#"
            error: `maybe` is not an answer to this gate
             --> w.yaml:4:73
              |
            4 |   - {name: a, prompt: x, approval_gate: {name: g, timeout: 1h, default: maybe}}
              |                                                                         ^^^^^ expected `approve` or `reject`

            error: a default answer needs a timeout
             --> w.yaml:5:60
              |
            5 |   - {name: b, prompt: x, approval_gate: {name: h, default: approve}}
              |                                                            ^^^^^^^ set the timeout

            error: the question is set twice
             --> w.yaml:6:60
              |
            6 |   - {name: c, prompt: x, approval_gate: {name: i, message: m}, approval_gate_message: n}
              |                                                            ^ keep one of them

            error: the key `name` is missing
             --> w.yaml:7:42
              |
            7 |   - {name: d, prompt: x, approval_gate: {timeout: 1h}}
              |                                          ^^^^^^^ `name` belongs here
        "#]],
    );
}

#[test]
fn templates_and_expressions_that_mean_nothing_are_faults() {
    check_phases(
        "  - name: a\n    prompt: |\n      one\n      {{ two\n  - name: b\n    prompt: '{{ x | nope }}'\n    skip_if: [a b, 'output contains x']\n  - name: c\n    type: bash\n    command: \"cat <<E\\n{{ x }}\\nE\"\n",
        expect![[r#"
            error: not a template: `{{` has no `}}`
             --> w.yaml:6:7
              |
            6 |       one
              |       ^^^ expected a template
              |
              = help: put text that is not a template between `{% raw %}` and `{% endraw %}`

            error: `a b` is not an expression: unexpected input after expression
              --> w.yaml:10:15
               |
            10 |     skip_if: [a b, 'output contains x']
               |               ^^^ expected one such as `output.contains('READY')`

            error: `output contains x` is not an expression: unexpected input after expression
              --> w.yaml:10:20
               |
            10 |     skip_if: [a b, 'output contains x']
               |                    ^^^^^^^^^^^^^^^^^^^ expected one such as `output.contains('READY')`

            error: not a template: a value is not allowed after a here-document: the shell would expand it; use `| raw` to allow that (line 2 of this text)
              --> w.yaml:13:14
               |
            13 |     command: "cat <<E\n{{ x }}\nE"
               |              ^^^^^^^^^^^^^^^^^^^^^ expected a template
               |
               = help: put text that is not a template between `{% raw %}` and `{% endraw %}`
        "#]],
    );
}

#[test]
fn faults_of_a_prompt_file_are_shown_there() {
    let workflow = "name: w\nagent: coder\nphases:\n  - {name: a, prompt: prompts/a.md}\n  - {name: b, prompt: b.md}\n  - {name: c, prompt: prompts/none.md}\n  - {name: d, prompt: x, skills: [none]}\n";
    check_files(
        &[
            ("w.yaml", workflow),
            ("prompts/a.md", "# Title\n\nSay {{#each x}} it.\n"),
            ("prompts/b.md", "One\nTwo ${x.output}\n"),
        ],
        expect![[r#"
            error: there is no file prompts/none.md
             --> w.yaml:6:23
              |
            6 |   - {name: c, prompt: prompts/none.md}
              |                       ^^^^^^^^^^^^^^^ named here
              |
              = help: searched: /fleet/workflows/prompts/none.md, /fleet/workflows/prompts/prompts/none.md

            error: there is no file skills/none/SKILL.md
             --> w.yaml:7:35
              |
            7 |   - {name: d, prompt: x, skills: [none]}
              |                                   ^^^^ named here
              |
              = help: searched: /fleet/workflows/skills/none/SKILL.md, /fleet/skills/none/SKILL.md

            error: not a template: `{{#each x}}` is not known: write `{% for … %}` or `{% if … %}`
             --> prompts/a.md:3:1
              |
            3 | Say {{#each x}} it.
              | ^^^^^^^^^^^^^^^^^^^ expected a template
              |
              = help: put text that is not a template between `{% raw %}` and `{% endraw %}`

            error: there is no phase `x`
             --> prompts/b.md:2:7
              |
            2 | Two ${x.output}
              |       ^ expected the name of a phase
        "#]],
    );
}

#[test]
fn labels_of_last_light_are_accepted_and_other_keys_are_checked() {
    check(
        "kind: build\nname: w\nagent: coder\ntrigger: build\npr_scoped: true\nvariables: {a: b}\nphases:\n  - name: a\n    prompt: x\n    variant: high\n    web_search: true\n    on_output: {contains_READY: {action: continue}, contains_BLOCKED: {action: pause}}\n  - {name: b, prompt: y, variant: low}\n",
        expect![[r#"
            warning: the agent `coder` has no reasoning effort, because it has `runtime: command`
              --> w.yaml:10:14
               |
            10 |     variant: high
               |              ^^^^ the phase runs without it

            warning: `action: pause` has no effect
              --> w.yaml:12:80
               |
            12 |     on_output: {contains_READY: {action: continue}, contains_BLOCKED: {action: pause}}
               |                                                                                ^^^^^ only `fail` has an effect

            warning: the agent `coder` has no reasoning effort, because it has `runtime: command`
              --> w.yaml:13:35
               |
            13 |   - {name: b, prompt: y, variant: low}
               |                                   ^^^ the phase runs without it
        "#]],
    );
    check(
        "kind: agent\nname: w\nagent: coder\nphases: [{name: a, prompt: x}]\n",
        expect![[r#"
        ok
    "#]],
    );
}

#[test]
fn an_output_that_may_not_be_there_is_told() {
    check_phases(
        "  - {name: a, prompt: x, depends_on: []}\n  - {name: b, prompt: '{{ a }}', depends_on: []}\n  - {name: c, prompt: '{{ a }} {{ b }}', depends_on: [b]}\n",
        expect![[r#"
            warning: `b` does not depend on `a`, so its output may be missing
             --> w.yaml:5:27
              |
            5 |   - {name: b, prompt: '{{ a }}', depends_on: []}
              |                           ^ empty until that phase has ended
              |
              = help: add it to `depends_on` of `b`, or of one of its dependencies

            warning: `c` does not depend on `a`, so its output may be missing
             --> w.yaml:6:27
              |
            6 |   - {name: c, prompt: '{{ a }} {{ b }}', depends_on: [b]}
              |                           ^ empty until that phase has ended
              |
              = help: add it to `depends_on` of `c`, or of one of its dependencies
        "#]],
    );
    check_phases(
        "  - {name: a, prompt: '${b.output}'}\n  - {name: b, prompt: '${a.output}'}\n",
        expect![[r#"
            warning: `a` does not depend on `b`, so its output may be missing
             --> w.yaml:4:26
              |
            4 |   - {name: a, prompt: '${b.output}'}
              |                          ^ empty until that phase has ended
              |
              = help: add it to `depends_on` of `a`, or of one of its dependencies
        "#]],
    );
}

#[test]
fn names_are_used_once() {
    check_phases(
        "  - {name: a, prompt: x, output_var: b}\n  - {name: b, prompt: x, output_var: b}\n  - {name: a, prompt: x}\n",
        expect![[r#"
            error: `b` is the name of another phase
             --> w.yaml:4:38
              |
            4 |   - {name: a, prompt: x, output_var: b}
              |                                      ^ expected another name

            error: there are two phases `a`
             --> w.yaml:6:12
              |
            6 |   - {name: a, prompt: x}
              |            ^ expected another name
        "#]],
    );
}

#[test]
fn a_phase_is_not_called_as_an_input_is() {
    check(
        "name: w\nagent: coder\ninputs: {plan: {}}\nphases: [{name: plan, prompt: x}]\n",
        expect![[r#"
            error: `plan` is also the name of an input
             --> w.yaml:4:17
              |
            4 | phases: [{name: plan, prompt: x}]
              |                 ^^^^ expected another name
        "#]],
    );
}
