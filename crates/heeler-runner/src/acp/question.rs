//! A permission request of an ACP agent, or a service of the client that needs a permission, and the
//! replies to it.

use serde_json::{Value as Json, json};

use super::tool_calls::DescribedCall;
use crate::client_tools::ClientToolRequest;
use crate::json_rpc::{DENIED, RpcDialect, RpcId};
use crate::program_questions::{ProgramQuestion, QuestionReply};
use crate::runtime::RuntimeEffect;

/// Dialect of the replies.
const RPC: RpcDialect = RpcDialect::Standard;

/// Question about an action of the agent.
pub(super) enum AcpQuestion {
    Permission(AcpPermissionRequest),
    /// The agent did not ask, and wants the client to act.
    ClientTool {
        id: RpcId,
        request: Box<ClientToolRequest>,
    },
}

/// Permission request of the agent.
pub(super) struct AcpPermissionRequest {
    id: RpcId,
    /// Tool call that it is about.
    call: String,
    /// The call as it was when the agent asked. Only this is permitted.
    described: DescribedCall,
    /// Options that the agent offers.
    allow: Option<String>,
    reject: Option<String>,
}

impl AcpPermissionRequest {
    pub(super) fn new(
        id: RpcId,
        call: String,
        described: DescribedCall,
        options: &Json,
    ) -> AcpPermissionRequest {
        let options = options.as_array().map_or(&[][..], Vec::as_slice);
        let option = |kind: &str| {
            let found = options.iter().find(|option| option["kind"] == kind);
            found.and_then(|option| option["optionId"].as_str()).map(str::to_owned)
        };
        AcpPermissionRequest {
            id,
            call,
            described,
            // An answer for the whole session is never chosen: it would answer later questions.
            allow: option("allow_once"),
            reject: option("reject_once").or_else(|| option("reject_always")),
        }
    }

    pub(super) fn call(&self) -> &str {
        &self.call
    }

    pub(super) fn described(&self) -> &DescribedCall {
        &self.described
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

impl ProgramQuestion for AcpQuestion {
    fn id(&self) -> &RpcId {
        match self {
            AcpQuestion::Permission(permission) => &permission.id,
            AcpQuestion::ClientTool { id, .. } => id,
        }
    }

    fn allow_refusal(&self) -> Option<&'static str> {
        match self {
            AcpQuestion::Permission(permission) => {
                permission.allow.is_none().then_some("the agent does not offer to allow this once")
            }
            AcpQuestion::ClientTool { .. } => None,
        }
    }

    fn reply(&self, reply: QuestionReply) -> RuntimeEffect {
        match (self, reply) {
            (AcpQuestion::Permission(permission), reply) => permission.reply(reply),
            (AcpQuestion::ClientTool { id, request }, QuestionReply::Allow) => {
                RuntimeEffect::ClientTool { call: id.clone(), request: (**request).clone() }
            }
            (AcpQuestion::ClientTool { id, .. }, QuestionReply::Withdraw) => {
                RPC.error_reply(id, DENIED, "the turn was ended")
            }
            (AcpQuestion::ClientTool { id, .. }, _) => {
                RPC.error_reply(id, DENIED, "the user did not permit this action")
            }
        }
    }
}
