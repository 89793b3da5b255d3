# Uploads a file of requests, waits for the batch and reads the answers, with OpenAI's package.
# Run: pip install openai && python3 examples/batch.py
import json, time
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
endpoint = "/v1/chat/completions"


def request(country):
    question = f"What is the capital of {country}?"
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0}
    return {"custom_id": country, "method": "POST", "url": endpoint, "body": body}


lines = "\n".join(json.dumps(request(country)) for country in ["France", "Japan"])
file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint=endpoint, completion_window="24h"
)
while batch.status in ["validating", "in_progress", "finalizing"]:
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
for line in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(line)
    message = answer["response"]["body"]["choices"][0]["message"]
    print(f"{answer['custom_id']}: {message['content']}")
# Prints:
# France: The capital of France is Paris.
# Japan: The capital of Japan is Tokyo.
