"""A Django project as somebody has it; tests/integrations/test_django.py runs its commands and its own tests."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project")
    execute_from_command_line(sys.argv)
