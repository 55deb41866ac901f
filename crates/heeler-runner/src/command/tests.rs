//! Shell commands as runs.

use super::*;

fn fresh() -> SessionStart {
    SessionStart::Fresh { id: "5f0a9b3e-0000-4000-8000-000000000001".parse().unwrap() }
}

#[test]
fn neither_command_nor_prompt_is_an_argument() {
    let mut command = CommandRuntime::new("the prompt".to_owned(), "curl -u k-123 x".to_owned());
    let launch = command.launch_spec(&fresh());
    assert_eq!(launch.program, "/bin/sh");
    assert_eq!(launch.args, [LaunchArg::File(b"curl -u k-123 x".to_vec())]);
    let begin = [RuntimeEffect::Write(b"the prompt".to_vec()), RuntimeEffect::CloseInput];
    assert_eq!(command.begin(Uuid::nil()), begin);
}

#[test]
fn each_line_is_a_message_and_the_exit_code_the_result() {
    let mut command = CommandRuntime::new(String::new(), "true".to_owned());
    assert_eq!(
        command.handle_line(b"one"),
        [RuntimeEffect::Message(AgentMessage::from_text("one"))]
    );
    assert_eq!(
        command.handle_line(b"\xfftwo"),
        [RuntimeEffect::Message(AgentMessage::from_text("\u{fffd}two"))]
    );
    command.handle_line(b"");
    let steps = command.handle_exit(Some(0));
    let [RuntimeEffect::Message(said), RuntimeEffect::Done] = &steps[..] else {
        panic!("{steps:?}")
    };
    let MessageBody::Result(result) = &said.body else { panic!("{said:?}") };
    assert_eq!((result.is_error, result.text.as_deref()), (false, Some("\u{fffd}two")));
}

#[test]
fn a_command_that_fails_says_with_which_code() {
    let mut command = CommandRuntime::new(String::new(), "false".to_owned());
    let steps = command.handle_exit(Some(3));
    let [RuntimeEffect::Message(said), RuntimeEffect::Done] = &steps[..] else {
        panic!("{steps:?}")
    };
    let MessageBody::Result(result) = &said.body else { panic!("{said:?}") };
    assert_eq!((result.is_error, &result.errors[0][..]), (true, "the command exited with code 3"));
    assert_eq!(command.handle_exit(None), [], "a signal is not a result");
}

#[test]
fn a_command_can_only_be_interrupted() {
    let mut command = CommandRuntime::new(String::new(), "sleep 9".to_owned());
    assert_eq!(command.interrupt(), [RuntimeEffect::Signal(Signal::INT)]);
    assert_eq!(command.send_message(Uuid::nil(), "more"), None);
}

#[test]
fn a_part_of_a_workflow_says_what_is_run() {
    let mut command =
        CommandRuntime::new(String::new(), "make test\n".to_owned()).with_command_recorded();
    let steps = command.begin(Uuid::nil());
    let [RuntimeEffect::Message(told), RuntimeEffect::Write(_), RuntimeEffect::CloseInput] =
        &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!(told.body, MessageBody::System { subtype: "command".to_owned() });
    assert_eq!(told.fields["content"], "make test");
}

#[test]
fn lines_of_a_flood_that_are_there_at_once_are_one_message() {
    let mut command = CommandRuntime::new(String::new(), "yes".to_owned());
    for _ in 0..SINGLE_LINE_MESSAGES_MAX {
        assert_eq!(
            command.handle_line(b"y"),
            [RuntimeEffect::Message(AgentMessage::from_text("y"))]
        );
    }
    assert_eq!(command.flush_lines(), []);
    assert_eq!(
        [command.handle_line(b"a"), command.handle_line(b""), command.handle_line(b"b")].concat(),
        []
    );
    assert_eq!(command.flush_lines(), [RuntimeEffect::Message(AgentMessage::from_text("a\n\nb"))]);
    assert_eq!(command.flush_lines(), []);
    let long = vec![b'x'; BATCHED_LINES_BYTES_MAX - 3];
    assert_eq!(command.handle_line(b"a"), []);
    let together = format!("a\n{}\nb", String::from_utf8(long.clone()).unwrap());
    assert_eq!(
        [command.handle_line(&long), command.handle_line(b"b")].concat(),
        [RuntimeEffect::Message(AgentMessage::from_text(&together))]
    );
    command.begin(Uuid::nil());
    assert_eq!(
        command.handle_line(b"y"),
        [RuntimeEffect::Message(AgentMessage::from_text("y"))],
        "it is another flood"
    );
}
