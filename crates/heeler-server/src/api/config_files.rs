//! API routes for config files: read, check and save by a person with the scope `admin`.

use std::sync::Arc;

use axum::Json as JsonReply;
use axum::extract::State;
use axum::http::StatusCode;
use heeler_config::{DEPTH_MAX, YamlPathStep, set_yaml_value};
use heeler_engine::{Caller, DaemonCommand};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::daemon_commands::unexpected_reply;
use crate::caller::KeyedCaller;
use crate::config_editor::{
    ConfigEditCheck, ConfigEditError, ConfigEditor, ConfigFileText, ConfigItemKind,
    EditableConfigFiles, WantedConfigEdit,
};
use crate::encoded_json::JsonResult;
use crate::extractors::{JsonBody, QueryParams};
use crate::problem::ProblemDetails;
use crate::replies::{ConfigReloadReply, DaemonReply};
use crate::server_state::{ServerState, SharedServerState};

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        admin: OpenApiRouter::new()
            .routes(routes!(files))
            .routes(routes!(text))
            .routes(routes!(check))
            .routes(routes!(set_value))
            .routes(routes!(save)),
        ..ApiRoutes::default()
    }
}

/// List the config files that can be edited.
#[utoipa::path(
    get, path = "/config/files", tag = "fleet", responses((status = OK, body = EditableConfigFiles)),
)]
async fn files(State(app): State<SharedServerState>) -> JsonResult<EditableConfigFiles> {
    app.use_config_editor(|editor| editor.files()).await
}

/// File to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ConfigFileParams {
    /// `path` of the list of files.
    path: String,
}

/// Read a config file. A file that contains a secret is refused.
#[utoipa::path(
    get, path = "/config/files/text", tag = "fleet", params(ConfigFileParams),
    responses((status = OK, body = ConfigFileText)),
)]
async fn text(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<ConfigFileParams>,
) -> JsonResult<ConfigFileText> {
    app.use_config_editor(move |editor| editor.read(&params.path)).await
}

/// Change of the config: `path`, `text` and `hash` replace a file; `addAgent` or `addWorkflow` with
/// `text` adds an agent or a workflow; `removeAgent` or `removeWorkflow` removes one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigEditBody {
    /// File to replace: `path` of the list of files.
    path: Option<String>,
    /// New text of the file, or text of the file of the new agent or workflow.
    text: Option<String>,
    /// `hash` of the text that was edited. A file that has changed since is not replaced.
    hash: Option<String>,
    /// Name of a new agent; its file is `agents/NAME.yaml`.
    add_agent: Option<String>,
    /// Name of an agent to remove. It must have a file of its own, which is moved to the trash.
    remove_agent: Option<String>,
    /// Name of a new workflow; its file is `NAME.yaml` in the folder of workflows.
    add_workflow: Option<String>,
    /// Name of a workflow to remove. Its file is moved to the trash.
    remove_workflow: Option<String>,
}

impl ConfigEditBody {
    fn into_edit(self) -> Result<WantedConfigEdit, ProblemDetails> {
        use ConfigItemKind::{Agent, Workflow};
        let added = [(Agent, self.add_agent), (Workflow, self.add_workflow)];
        let removed = [(Agent, self.remove_agent), (Workflow, self.remove_workflow)];
        let mut added = added.into_iter().filter_map(|(kind, name)| Some((kind, name?)));
        let mut removed = removed.into_iter().filter_map(|(kind, name)| Some((kind, name?)));
        let items = (added.next(), added.next(), removed.next(), removed.next());
        match (self.path, self.text, self.hash, items) {
            (Some(path), Some(text), Some(hash), (None, None, None, None)) => {
                Ok(WantedConfigEdit::Replace { path, text, hash })
            }
            (None, Some(text), None, (Some((kind, name)), None, None, None)) => {
                Ok(WantedConfigEdit::Add { kind, name, text })
            }
            (None, None, None, (None, None, Some((kind, name)), None)) => {
                Ok(WantedConfigEdit::Remove { kind, name })
            }
            _ => Err(ProblemDetails::bad_request(
                "give path, text and hash; or addAgent or addWorkflow, and text; or removeAgent; \
                 or removeWorkflow",
            )),
        }
    }
}

/// Result of a check, with a drawing.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CheckedConfigEdit {
    #[serde(flatten)]
    check: ConfigEditCheck,
    /// Drawing of `phases`: an SVG in an HTML element.
    graph: Option<String>,
}

/// Check the whole fleet with a change of the config, and show the difference. Nothing is written.
#[utoipa::path(
    post, path = "/config/check", tag = "fleet", request_body = ConfigEditBody,
    responses((status = OK, body = CheckedConfigEdit)),
)]
async fn check(
    State(app): State<SharedServerState>,
    JsonBody(order): JsonBody<ConfigEditBody>,
) -> JsonResult<CheckedConfigEdit> {
    let edit = order.into_edit()?;
    app.use_config_editor(move |editor| {
        let check = editor.check(&edit)?;
        let graph = check.phases.as_deref().map(heeler_pages::workflows::draft_graph);
        Ok(CheckedConfigEdit { check, graph })
    })
    .await
}

/// Change of one value in a YAML text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct YamlValueBody {
    text: String,
    /// Path to the value: keys, and positions in lists from 0. The length of a list appends an item.
    #[schema(value_type = Vec<Object>, example = json!(["schedules", "nightly", "cron"]))]
    path: Vec<Json>,
    /// New value; `null` removes the value.
    #[schema(value_type = Option<Object>)]
    value: Json,
}

/// A changed YAML text.
#[derive(Debug, Serialize, ToSchema)]
struct ChangedYamlText {
    text: String,
}

/// Change one value in a YAML text; comments and everything else stay. Nothing is read or written.
#[utoipa::path(
    post, path = "/config/value", tag = "fleet", request_body = YamlValueBody,
    responses((status = OK, body = ChangedYamlText)),
)]
async fn set_value(JsonBody(body): JsonBody<YamlValueBody>) -> JsonResult<ChangedYamlText> {
    let step = |step: &Json| match step {
        Json::String(key) => Some(YamlPathStep::Key(key.clone())),
        index => Some(YamlPathStep::Index(usize::try_from(index.as_u64()?).ok()?)),
    };
    let path: Option<Vec<YamlPathStep>> = body.path.iter().map(step).collect();
    let path = path.filter(|path| (1..=DEPTH_MAX).contains(&path.len())).ok_or_else(|| {
        ProblemDetails::bad_request(format!("`path` has 1 to {DEPTH_MAX} keys or numbers"))
    })?;
    // A large text takes long enough to delay other requests.
    let edit = move || set_yaml_value(&body.text, &path, &body.value);
    let changed = tokio::task::spawn_blocking(edit).await.map_err(|error| {
        tracing::error!(%error, "the editor of values panicked");
        ProblemDetails::internal_error("internal error of heeler; see its log")
    })?;
    let text = changed.map_err(|error| {
        ProblemDetails::bad_request(error.to_string()).with_hint("change the text by hand")
    })?;
    Ok(JsonReply(ChangedYamlText { text }))
}

/// Save a change of the config, and load it. A change with errors is refused.
///
/// Only a person can do this: neither a run nor a hook, whatever token they have.
#[utoipa::path(
    post, path = "/config/save", tag = "fleet", request_body = ConfigEditBody,
    responses((status = OK, body = ConfigReloadReply)),
)]
async fn save(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    JsonBody(order): JsonBody<ConfigEditBody>,
) -> JsonResult<ConfigReloadReply> {
    if caller.caller.engine_caller != Caller::Person {
        return Err(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            "not-allowed",
            "only a person can change the config",
        ));
    }
    let edit = order.into_edit()?;
    // Without the text, which may contain a secret.
    tracing::info!(by = caller.caller.name, subject = edit.subject(), "config edit requested");
    let JsonReply(saved) = app.use_config_editor(move |editor| editor.save(&edit)).await?;
    let by = caller.caller.name.clone();
    // The person has written this content, so it is confirmed without another question.
    let command = match saved.fingerprint {
        Some(fingerprint) => DaemonCommand::AcceptConfig { fingerprint, load: true, by },
        None => DaemonCommand::Reload,
    };
    match app.send_command(&caller.caller, command).await?.into() {
        DaemonReply::Reloaded(reloaded) => Ok(JsonReply(reloaded)),
        other => Err(unexpected_reply(&other)),
    }
}

impl ServerState {
    /// Uses the config editor on a thread that may wait for the disk.
    async fn use_config_editor<T: Send + 'static>(
        &self,
        act: impl FnOnce(&dyn ConfigEditor) -> Result<T, ConfigEditError> + Send + 'static,
    ) -> JsonResult<T> {
        let Some(editor) = self.config_editor.as_ref().map(Arc::clone) else {
            return Err(ProblemDetails::not_found("this daemon cannot edit its config"));
        };
        let answer = tokio::task::spawn_blocking(move || act(editor.as_ref())).await;
        match answer {
            Ok(answer) => Ok(JsonReply(answer.map_err(edit_problem)?)),
            Err(error) => {
                tracing::error!(%error, "the config editor panicked");
                Err(ProblemDetails::internal_error("internal error of heeler; see its log"))
            }
        }
    }
}

fn edit_problem(error: ConfigEditError) -> ProblemDetails {
    match error {
        ConfigEditError::NotFound(message) => ProblemDetails::not_found(message),
        ConfigEditError::Invalid(message) => ProblemDetails::bad_request(message),
        ConfigEditError::Failed(message) => ProblemDetails::internal_error(message),
        ConfigEditError::Refused { message, hint } => {
            let problem = ProblemDetails::new(StatusCode::CONFLICT, "refused", message);
            match hint {
                Some(hint) => problem.with_hint(hint),
                None => problem,
            }
        }
    }
}
