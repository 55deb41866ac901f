//! The page where people say who they are.

use maud::{DOCTYPE, Markup, html};

use crate::frame::head;

/// What the login page shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoginView {
    /// The fleet's name.
    pub fleet: String,
    /// Where to go after that.
    pub next: String,
    /// Whether somebody has a password.
    pub has_passwords: bool,
    /// What was wrong with the last try.
    pub problem: Option<String>,
}

/// Returns the login page; its form is sent to `POST /login`.
pub fn page(view: &LoginView) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (head("Log in", &view.fleet)) }
            body {
                main.centre {
                    div.card {
                        h1 { "Log in" }
                        @if let Some(problem) = &view.problem {
                            p.banner.bad role="alert" { (problem) }
                        }
                        form.stack method="post" action="/login" {
                            input type="hidden" name="next" value=(view.next);
                            @if view.has_passwords {
                                div.field {
                                    label for="user" { "Name" }
                                    input #user name="user" autocomplete="username" required;
                                }
                                div.field {
                                    label for="password" { "Password" }
                                    input #password type="password" name="password"
                                        autocomplete="current-password" required;
                                }
                            } @else {
                                div.field {
                                    label for="token" { "Token" }
                                    input #token type="password" name="token" autocomplete="off" required;
                                }
                            }
                            button.button.primary { "Log in" }
                        }
                        p.note {
                            "Or run " code { "heeler open" } " on the machine of the fleet: it gives a link that logs you in."
                        }
                    }
                }
            }
        }
    }
}
