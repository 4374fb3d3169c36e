# CPU image: embedcache and distill with the packaged teacher, ONNX export and S3.
#   docker build -t embedcache .
#   docker run --rm -v "$PWD:/work" embedcache embedcache build corpus.txt --teacher minilm-l6 --cache ./cache
FROM python:3.11-slim
ENV PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu HOME=/work EMBEDCACHE_CONFIG=/work/.embedcache.json
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY embedcache embedcache
COPY distill distill
RUN pip install -c constraints.txt '.[minilm,onnx,s3]'
# Files that it writes belong to whom the folder belongs: add --user "$(id -u):$(id -g)".
WORKDIR /work
CMD ["embedcache", "--help"]
