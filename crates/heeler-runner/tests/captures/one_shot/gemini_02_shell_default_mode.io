# cmd: gemini -p 'go MOCK[{"text":"I run","sh":"touch a.txt && echo made"},{"echo":true}]' -o stream-json
# exit: 0  wall: 3.98s
   3.662 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   3.662 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   3.786 E Ripgrep is not available. Falling back to GrepTool.
   3.787 E [STARTUP] Phase 'cleanup_ops' was started but never ended. Skipping metrics.
   3.789 < {"type":"init","timestamp":"2026-11-16T10:57:05.099Z","session_id":"cee18b26-27a3-41d3-a43c-5308594f679e","model":"auto"}
   3.792 < {"type":"message","timestamp":"2026-11-16T10:57:05.101Z","role":"user","content":"go MOCK[{\"text\":\"I run\",\"sh\":\"touch a.txt && echo made\"},{\"echo\":true}]"}
   3.863 < {"type":"message","timestamp":"2026-11-16T10:57:05.173Z","role":"assistant","content":"no shell tool in ['update_topic', 'list_directory', 'read_file',","delta":true}
   3.865 < {"type":"message","timestamp":"2026-11-16T10:57:05.175Z","role":"assistant","content":" 'grep_search', 'glob', 'google_web_search', 'enter_plan_mode', ","delta":true}
   3.866 < {"type":"message","timestamp":"2026-11-16T10:57:05.175Z","role":"assistant","content":"'invoke_agent']","delta":true}
   3.910 < {"type":"result","timestamp":"2026-11-16T10:57:05.219Z","status":"success","stats":{"total_tokens":240,"input_tokens":200,"output_tokens":40,"cached":0,"input":200,"duration_ms":121,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100}}}}
