# cmd: gemini -p 'x MOCK[{"sh":"sleep 87"},{"text":"d"}]' -o stream-json --approval-mode yolo
# exit: 0  wall: 8.08s
   3.154 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   3.154 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   3.365 < {"type":"init","timestamp":"2026-11-16T11:19:12.737Z","session_id":"b16cb13b-c7ca-41df-a14a-96e7ef227c61","model":"auto"}
   3.365 < {"type":"message","timestamp":"2026-11-16T11:19:12.738Z","role":"user","content":"x MOCK[{\"sh\":\"sleep 87\"},{\"text\":\"d\"}]"}
   3.386 E YOLO mode is enabled. All tool calls will be automatically approved.
   3.386 E YOLO mode is enabled. All tool calls will be automatically approved.
   3.386 E Ripgrep is not available. Falling back to GrepTool.
   3.456 < {"type":"tool_use","timestamp":"2026-11-16T11:19:12.832Z","tool_name":"run_shell_command","tool_id":"run_shell_command__fc_s0_06c6cfc08ab2","parameters":{"command":"sleep 87","description":"mock"}}
