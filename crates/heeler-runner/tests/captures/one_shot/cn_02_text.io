# cmd: cn --config /base/cn.yaml -p 'hello MOCK[{"text":"hi there"}]' --format json
# exit: 0  wall: 4.01s
   3.938 < {"response":"hi there","status":"success","note":"Response was not valid JSON, so it was wrapped in a JSON object"}
