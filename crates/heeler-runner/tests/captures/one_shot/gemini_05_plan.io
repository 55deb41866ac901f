# cmd: gemini -p 'go MOCK[{"sh":"touch c.txt"},{"echo":true}]' -o stream-json --approval-mode plan
# exit: 0  wall: 4.10s
   3.833 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   3.834 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   3.918 E Ripgrep is not available. Falling back to GrepTool.
   3.920 < {"type":"init","timestamp":"2026-11-16T10:57:17.826Z","session_id":"e7bf4b81-a087-48bf-a17c-17397e9853a7","model":"auto"}
   3.923 < {"type":"message","timestamp":"2026-11-16T10:57:17.828Z","role":"user","content":"go MOCK[{\"sh\":\"touch c.txt\"},{\"echo\":true}]"}
   3.970 < {"type":"message","timestamp":"2026-11-16T10:57:17.876Z","role":"assistant","content":"no shell tool in ['update_topic', 'list_directory', 'read_file',","delta":true}
   3.972 < {"type":"message","timestamp":"2026-11-16T10:57:17.878Z","role":"assistant","content":" 'grep_search', 'glob', 'replace', 'write_file', 'google_web_sea","delta":true}
   3.972 < {"type":"message","timestamp":"2026-11-16T10:57:17.879Z","role":"assistant","content":"rch', 'exit_plan_mode', 'invoke_agent']","delta":true}
   4.025 < {"type":"result","timestamp":"2026-11-16T10:57:17.931Z","status":"success","stats":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100,"duration_ms":105,"tool_calls":0,"models":{"gemini-3.1-pro-preview-customtools":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100}}}}
