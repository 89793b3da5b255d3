# Reads an answer as an object of a Pydantic model, with OpenAI's package.
# Run: pip install openai && python3 examples/structured-output.py
from openai import OpenAI
from pydantic import BaseModel


class Capital(BaseModel):
    city: str
    country: str


client = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
completion = client.chat.completions.parse(
    model="default",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    response_format=Capital,
    temperature=0,
)
capital = completion.choices[0].message.parsed
print(f"{capital.city} is in {capital.country}.")
# Prints:
# Paris is in France.
