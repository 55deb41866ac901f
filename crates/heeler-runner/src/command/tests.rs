//! Shell commands as runs.

use super::*;

fn fresh() -> SessionStart {
    SessionStart::Fresh { id: "5f0a9b3e-0000-4000-8000-000000000001".parse().unwrap() }
}

#[test]
fn neither_command_nor_prompt_is_an_argument() {
    let mut command = CommandRuntime::new("the prompt".to_owned(), "curl -u k-123 x".to_owned());
    let launch = command.launch(&fresh());
    assert_eq!(launch.program, "/bin/sh");
    assert_eq!(launch.args, [Arg::File(b"curl -u k-123 x".to_vec())]);
    let begin = [Step::Write(b"the prompt".to_vec()), Step::CloseInput];
    assert_eq!(command.begin(Uuid::nil()), begin);
}

#[test]
fn each_line_is_a_message_and_the_exit_code_the_result() {
    let mut command = CommandRuntime::new(String::new(), "true".to_owned());
    assert_eq!(command.line(b"one"), [Step::Message(Message::text("one"))]);
    assert_eq!(command.line(b"\xfftwo"), [Step::Message(Message::text("\u{fffd}two"))]);
    command.line(b"");
    let steps = command.exited(Some(0));
    let [Step::Message(said), Step::Done] = &steps[..] else { panic!("{steps:?}") };
    let Body::Result(result) = &said.body else { panic!("{said:?}") };
    assert_eq!((result.is_error, result.text.as_deref()), (false, Some("\u{fffd}two")));
}

#[test]
fn a_command_that_fails_says_with_which_code() {
    let mut command = CommandRuntime::new(String::new(), "false".to_owned());
    let steps = command.exited(Some(3));
    let [Step::Message(said), Step::Done] = &steps[..] else { panic!("{steps:?}") };
    let Body::Result(result) = &said.body else { panic!("{said:?}") };
    assert_eq!((result.is_error, &result.errors[0][..]), (true, "the command exited with code 3"));
    assert_eq!(command.exited(None), [], "a signal is not a result");
}

#[test]
fn a_command_can_only_be_interrupted() {
    let mut command = CommandRuntime::new(String::new(), "sleep 9".to_owned());
    assert_eq!(command.interrupt(), [Step::Signal(Signal::INT)]);
    assert_eq!(command.say(Uuid::nil(), "more"), None);
}
