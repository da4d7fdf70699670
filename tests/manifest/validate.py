"""Validates manifests by the official schemas, strictly, for each given version of Kubernetes.

Prints a line of JSON for each file: the list of its documents, as a YAML parser reads them.

    python validate.py 1.33,1.37 FILE...
"""

import json
import sys

import kubernetes_validate
import yaml


def main():
    versions, files = sys.argv[1].split(","), sys.argv[2:]
    for path in files:
        with open(path, encoding="utf-8") as file:
            documents = list(yaml.safe_load_all(file))
        for document in documents:
            for version in versions:
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    sys.exit(f"{path}: {document.get('kind')} in {version}: {error}")
        print(json.dumps(documents))


if __name__ == "__main__":
    main()
