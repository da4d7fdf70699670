#!/bin/bash
# Says its environment, a variable a line, with its global rank in front.
env | while read -r line; do echo "env rank=$RANK $line"; done
