//! Names of folders, as the programs make them.

use super::*;

#[test]
fn folders_of_kimi_code_are_named_by_the_directory_and_its_hash() {
    let name = |cwd: &str| kimi_project(Utf8Path::new(cwd));
    // A folder that Kimi Code 2.1.1 made.
    assert_eq!(name("/tmp/kimi-probe-420ea6/run/work"), "wd_work_efe2cf4c3e2c");
    assert!(name("/a/My  App (2)").starts_with("wd_my-app-2_"));
    assert!(name("/a/来信").starts_with("wd_workspace_"));
    assert!(
        name(&format!("/a/{}", "x".repeat(90))).starts_with(&format!("wd_{}_", "x".repeat(40)))
    );
}

#[test]
fn folders_of_qwen_code_and_grok_build_are_named_by_the_directory() {
    assert_eq!(qwen_project("/home/Ann/a_b.c".into()), "-home-Ann-a-b-c");
    assert_eq!(qwen_project("/é𝄞".into()), "----");
    assert_eq!(percent_encode("/home/a b/é"), "%2Fhome%2Fa%20b%2F%C3%A9");
}

/// A home of Gemini CLI, in which projects are looked up.
struct GeminiHome {
    _temp: tempfile::TempDir,
    folder: NativeFolder,
}

impl GeminiHome {
    fn new() -> GeminiHome {
        let temp = tempfile::tempdir().unwrap();
        let home = Utf8Path::from_path(temp.path()).unwrap();
        let folder = NativeFolder { program: NativeProgram::Gemini, path: home.join("tmp") };
        GeminiHome { folder, _temp: temp }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path.parent().unwrap().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn project(&self, cwd: &str) -> String {
        gemini_project(&self.folder, cwd.into()).unwrap()
    }
}

#[test]
fn a_project_of_gemini_cli_is_the_listed_one_the_marked_one_or_a_new_one() {
    let home = GeminiHome::new();
    assert_eq!(home.project("/work/My App"), "my-app");
    home.write("tmp/my-app/.project_root", "/other/my app");
    assert_eq!(home.project("/work/My App"), "my-app-1");
    home.write("history/my-app-1/.project_root", "/other");
    assert_eq!(home.project("/work/My App"), "my-app-2");
    home.write("tmp/marked/.project_root", "/work/My App\n");
    assert_eq!(home.project("/work/My App"), "marked");
    let list = |name: &str| format!("{{\"projects\":{{\"/work/My App\":\"{name}\"}}}}");
    home.write("projects.json", &list("listed"));
    assert_eq!(home.project("/work/My App"), "listed");
    // Not a name that leaves the folder, and not one of another project.
    for name in ["../../evil", "", "my-app"] {
        home.write("projects.json", &list(name));
        assert_eq!(home.project("/work/My App"), "marked", "{name}");
    }
    home.write("projects.json", "no JSON");
    assert_eq!(home.project("/"), "project");
}

#[test]
fn the_number_of_projects_with_one_name_is_limited() {
    let home = GeminiHome::new();
    let listed: serde_json::Map<String, Json> = (0..SAME_NAMES_MAX)
        .map(|number| match number {
            0 => ("/0".to_owned(), "app".into()),
            number => (format!("/{number}"), format!("app-{number}").into()),
        })
        .collect();
    home.write("projects.json", &serde_json::json!({ "projects": listed }).to_string());
    let error = gemini_project(&home.folder, "/work/app".into()).unwrap_err();
    assert!(error.to_string().ends_with("has too many projects named app"), "{error}");
}
