//! Taking the secrets out of a message, before anything of it is cut, counted or kept.

use super::{ApiError, Body, Message, Task, TurnResult};
use crate::redact::Redactor;

impl Message {
    /// Takes the secrets out of everything that was said.
    ///
    /// A delta is left as it is: it may hold a piece of a secret only, so it is for
    /// [`Redactor::stream`].
    pub fn redact(&mut self, redactor: &Redactor) {
        if redactor.knows_nothing() {
            return;
        }
        // An id in another spelling than the secret's would be found by nobody after this.
        let is_secret = |uuid: &uuid::Uuid| {
            let forms = [uuid.hyphenated().to_string(), uuid.simple().to_string()];
            let upper = forms.each_ref().map(|form| form.to_uppercase());
            forms.iter().chain(&upper).any(|form| redactor.finds_in(form))
        };
        self.uuid = self.uuid.take().filter(|uuid| !is_secret(uuid));
        self.session.iter_mut().for_each(|id| redactor.clean(id));
        self.parent_tool_use_id.iter_mut().for_each(|id| redactor.clean(id));
        redactor.object(&mut self.fields);
        self.body.redact(redactor);
    }
}

impl Body {
    fn redact(&mut self, redactor: &Redactor) {
        let all =
            |texts: &mut [&mut String]| texts.iter_mut().for_each(|text| redactor.clean(text));
        let some =
            |text: &mut Option<String>| text.iter_mut().for_each(|text| redactor.clean(text));
        match self {
            Body::Init(init) => {
                some(&mut init.version);
                some(&mut init.model);
            }
            Body::Assistant(said) => {
                redactor.object(&mut said.message);
                said.api_error.iter_mut().for_each(|ApiError { code, kind, status: _ }| {
                    some(code);
                    some(kind);
                });
            }
            Body::User(told) => redactor.object(&mut told.message),
            Body::Delta { text: _ } => {}
            Body::Result(result) => result.redact(redactor),
            Body::Retry(retry) => some(&mut retry.error),
            Body::RateLimit(limit) => some(&mut limit.status),
            Body::Task(Task { subtype, id, kind, background: _, status }) => {
                all(&mut [subtype, id]);
                some(kind);
                some(status);
            }
            Body::Background { running } => running.iter_mut().for_each(|id| redactor.clean(id)),
            Body::Lifecycle { command, state } => all(&mut [command, state]),
            Body::Error { message, code } => {
                redactor.clean(message);
                some(code);
            }
            Body::Unknown { kind, text } => all(&mut [kind, text]),
            Body::Malformed { reason, text } => all(&mut [reason, text]),
            Body::System { subtype: kind } | Body::Quiet { kind } => redactor.clean(kind),
        }
    }
}

impl TurnResult {
    fn redact(&mut self, redactor: &Redactor) {
        redactor.clean(&mut self.subtype);
        self.errors.iter_mut().for_each(|error| redactor.clean(error));
        for text in [
            &mut self.text,
            &mut self.stop_reason,
            &mut self.terminal_reason,
            &mut self.api_error_type,
        ] {
            text.iter_mut().for_each(|text| redactor.clean(text));
        }
    }
}
