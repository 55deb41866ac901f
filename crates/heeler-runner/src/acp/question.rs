//! A permission request of an ACP agent, and the replies to it.

use serde_json::{Value as Json, json};

use super::RPC;
use crate::json_rpc::RpcId;
use crate::program_questions::{ProgramQuestion, QuestionReply};
use crate::runtime::RuntimeEffect;

/// Permission request of the agent.
pub(super) struct AcpQuestion {
    id: RpcId,
    /// Tool call that it is about.
    call: String,
    /// Options that the agent offers.
    allow: Option<String>,
    reject: Option<String>,
}

impl AcpQuestion {
    pub(super) fn new(id: RpcId, call: String, options: &Json) -> AcpQuestion {
        let options = options.as_array().map_or(&[][..], Vec::as_slice);
        let option = |kind: &str| {
            let found = options.iter().find(|option| option["kind"] == kind);
            found.and_then(|option| option["optionId"].as_str()).map(str::to_owned)
        };
        AcpQuestion {
            id,
            call,
            // An answer for the whole session is never chosen: it would answer later questions.
            allow: option("allow_once"),
            reject: option("reject_once").or_else(|| option("reject_always")),
        }
    }

    pub(super) fn call(&self) -> &str {
        &self.call
    }
}

impl ProgramQuestion for AcpQuestion {
    fn id(&self) -> &RpcId {
        &self.id
    }

    fn allow_refusal(&self) -> Option<&'static str> {
        self.allow.is_none().then_some("the agent does not offer to allow this once")
    }

    fn reply(&self, reply: QuestionReply) -> RuntimeEffect {
        let option = match reply {
            QuestionReply::Allow => &self.allow,
            QuestionReply::Deny | QuestionReply::DenyAndEnd => &self.reject,
            QuestionReply::Withdraw => &None,
        };
        let outcome = match option {
            Some(option) => json!({ "outcome": "selected", "optionId": option }),
            None => json!({ "outcome": "cancelled" }),
        };
        RPC.reply(&self.id, json!({ "outcome": outcome }))
    }
}
