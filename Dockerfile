# CPU image: embedcache and distill with the packaged teacher, ONNX export and S3.
#   docker build -t embedcache .
#   docker run --rm -v "$PWD:/data" embedcache embedcache build corpus.txt --teacher minilm-l6 --cache ./cache
# Add --user "$(id -u):$(id -g)", and the files that it writes are yours.
FROM python:3.11-slim
# The home is the mounted folder, which any user may write.
ENV HOME=/data PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY embedcache embedcache
COPY distill distill
RUN pip install -c constraints.txt '.[minilm,onnx,s3]'
WORKDIR /data
CMD ["embedcache", "--help"]
