# cmd: cn --config /base/cn.yaml --auto -p 'go MOCK[{"sh":"touch a.txt && echo made"},{"text":"done"}]' --format json
# exit: 0  wall: 4.04s
   3.989 < {"response":"done","status":"success","note":"Response was not valid JSON, so it was wrapped in a JSON object"}
