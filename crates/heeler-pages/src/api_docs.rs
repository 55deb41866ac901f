//! Page that documents the API and sends test requests.
//!
//! It is generated from the OpenAPI description. `assets/api.js` sends the requests, with the
//! identity of the user of the page.

use maud::{Markup, html};
use serde_json::Value;

use crate::{DashboardSection, PageFrame, ViewerScope, assets};

/// One route with one method.
struct ApiOperation<'d> {
    method: &'d str,
    path: &'d str,
    spec: &'d Value,
}

impl ApiOperation<'_> {
    fn tag(&self) -> &str {
        self.spec["tags"][0].as_str().unwrap_or("other")
    }

    fn scope(&self) -> &str {
        self.spec["x-heeler-scope"].as_str().unwrap_or_default()
    }

    fn is_allowed(&self, allowed: ViewerScope) -> bool {
        match self.scope() {
            "read" => true,
            "operate" => allowed >= ViewerScope::Operate,
            // An unknown scope is treated as the strictest.
            _ => allowed >= ViewerScope::Admin,
        }
    }

    /// Lists the path and query parameters; the page sets headers itself.
    fn parameters(&self) -> impl Iterator<Item = &Value> {
        let all = self.spec["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter(|parameter| parameter["in"] != "header")
    }

    /// Returns true if the reply is a stream, which does not end.
    fn is_stream(&self) -> bool {
        self.spec["responses"]["200"]["content"]["text/event-stream"].is_object()
    }
}

/// Returns the page for an OpenAPI description.
pub fn page(frame: &PageFrame, description: &Value) -> Markup {
    let operations = operations(description);
    let mut tags: Vec<&str> = Vec::new();
    for operation in &operations {
        if !tags.contains(&operation.tag()) {
            tags.push(operation.tag());
        }
    }
    let content = html! {
        div.head { h1 { "API" } a.button.small href="/api/v1/openapi.json" { "OpenAPI file" } }
        p.muted { (description["info"]["description"].as_str().unwrap_or_default()) }
        @for tag in tags {
            section.stack-s aria-labelledby={ "tag-" (tag) } {
                h2 id={ "tag-" (tag) } { (tag) }
                @for operation in operations.iter().filter(|it| it.tag() == tag) {
                    (operation_section(frame, description, operation))
                }
            }
        }
        script type="module" src=(assets::href("api.js")) {}
    };
    frame.page(DashboardSection::Other, "API", content)
}

fn operations(description: &Value) -> Vec<ApiOperation<'_>> {
    let paths = description["paths"].as_object();
    let each = paths.into_iter().flatten().flat_map(|(path, item)| {
        let methods = item.as_object().into_iter().flatten();
        methods.map(move |(method, spec)| ApiOperation { method, path, spec })
    });
    each.collect()
}

fn operation_section(
    frame: &PageFrame,
    description: &Value,
    operation: &ApiOperation<'_>,
) -> Markup {
    let ApiOperation { method, path, spec } = operation;
    html! {
        details.card {
            summary.pad {
                code { (method.to_uppercase()) " " (path) } " "
                span.muted { (spec["summary"].as_str().unwrap_or_default()) } " "
                span.badge { (operation.scope()) }
            }
            form.pad.stack-s data-try={ (method.to_uppercase()) " " (path) } {
                @if let Some(more) = spec["description"].as_str() { p { (inline_prose(more)) } }
                @for parameter in operation.parameters() { (parameter_field(operation, parameter)) }
                @if let Some(body) = body_field(description, spec) { (body) }
                // The reply of a stream would never be complete, so there is no button.
                @if operation.is_stream() {
                    p.note { "A stream of events: read it with curl -N." }
                } @else if operation.is_allowed(frame.viewer_scope) {
                    div { button.button.primary type="submit" { "Send" } }
                } @else {
                    p.note { "Your scope does not allow this." }
                }
                pre hidden role="status" { code {} }
            }
        }
    }
}

fn parameter_field(operation: &ApiOperation<'_>, parameter: &Value) -> Markup {
    let name = parameter["name"].as_str().unwrap_or_default();
    let is_required = parameter["required"] == true;
    let id = format!("{}-{}-{name}", operation.method, operation.path);
    html! {
        div.field {
            label for=(id) { (name) @if !is_required { " " span.muted { "(optional)" } } }
            input id=(id) name=(name) data-in=(parameter["in"].as_str().unwrap_or("query"))
                required[is_required] autocomplete="off";
            @if let Some(about) = parameter["description"].as_str() { p.note { (inline_prose(about)) } }
        }
    }
}

/// Renders text of the description; text between backticks becomes code.
fn inline_prose(text: &str) -> Markup {
    html! {
        @for (at, piece) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (piece) } } @else { (piece) }
        }
    }
}

/// Renders the field for the body, with a list of its keys and their descriptions.
fn body_field(description: &Value, spec: &Value) -> Option<Markup> {
    let schema = &spec["requestBody"]["content"]["application/json"]["schema"];
    let name = schema["$ref"].as_str()?.rsplit('/').next()?;
    let schema = &description["components"]["schemas"][name];
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    let keys = schema["properties"].as_object().into_iter().flatten();
    Some(html! {
        div.field {
            label { "Body" textarea name="body" rows="4" spellcheck="false" { "{}" } }
            dl.facts {
                @for (key, value) in keys {
                    dt { code { (key) } @if required.iter().any(|it| it == key) { " *" } }
                    dd { (inline_prose(value["description"].as_str().unwrap_or_default())) }
                }
            }
        }
    })
}
